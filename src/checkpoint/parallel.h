// SPDX-License-Identifier: Apache-2.0
// Decides what each rank of a tensor-parallel or expert-parallel run holds: cuts of modules, heads,
// layers, places of experts. Pure functions; they throw Error that names the numbers which do not
// divide.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quant/slice.h"

namespace moebius {

// A way in which tensor parallelism divides a matrix w[N,K]: not at all (every rank has all of it),
// by outputs (rows of w; the ranks' outputs are concatenated, which changes no byte), or by inputs
// (columns of w; the ranks' outputs are added).
enum class Cut : uint8_t { kWhole, kOutputs, kInputs };
// Returns the cut of a module. `second` is the cut of matrices that read outputs of other cut
// matrices (o_proj, down): kInputs, so that they read what their rank computed and the caller adds
// up, or kOutputs, so that their input rows are gathered first.
Cut cut_of(const Module& module, Cut second = Cut::kInputs);

// The attention heads of a rank: whole groups of query heads with one key-value head. With fewer
// key-value heads than ranks, ranks share a group: each has some of its query heads, and the
// key-value head is repeated.
struct HeadCut {
  Range heads, kv_heads;  // heads that this rank computes
  Range given;  // the part of `heads` whose results this rank sends to others; may be empty
};
HeadCut head_cut(uint64_t heads, uint64_t kv_heads, uint64_t ranks, uint64_t rank);

// Divides layers into `stages` pipeline stages and returns the first layer of each, then the number
// of layers. Stages are as even as possible in bytes: bytes[i] for layer i, `first_bytes` in
// addition for the first stage. A stage may begin with layer i if may_begin[i]. Throws Error if
// there are fewer such layers than stages.
std::vector<size_t> stage_layers(std::span<const uint64_t> bytes, uint64_t first_bytes,
                                 const std::vector<bool>& may_begin, uint64_t stages);

enum class Placement : uint8_t { kLinear, kRoundRobin };
// Returns the number of experts on rank `rank` of `ep`: the first E mod ep ranks have one more.
uint64_t expert_count(uint64_t E, uint64_t ep, uint64_t rank);
// Returns the index on this rank of each expert, [E]; -1: the expert is on another rank.
std::vector<int32_t> expert_map(uint64_t E, uint64_t ep, uint64_t rank, Placement placement);

}  // namespace moebius
