// SPDX-License-Identifier: Apache-2.0
// Computes what each rank of a tensor-parallel or expert-parallel run holds: slices of tensors,
// places of experts, sizes. Pure functions; they throw Error that names the numbers which do not
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

// A piece of one stored tensor, along dimension `dim`, in stored units (bytes, words, groups). dim
// < 0: the whole tensor.
struct TensorSlice {
  int dim = -1;
  uint64_t begin = 0, count = 0;
  bool operator==(const TensorSlice&) const = default;
};

// Returns the part of tensor `role` that rank `rank` of `tp` needs. Scales cover all groups or
// blocks that the slice touches, so a slice may begin inside one (QuantMatrix has phases for that).
// The bias of a module cut by inputs is whole, because one rank adds it.
TensorSlice tp_slice(const MatrixPlan& plan, Role role, Cut cut, uint64_t tp, uint64_t rank);

enum class Placement : uint8_t { kLinear, kRoundRobin };
// Returns the number of experts on rank `rank` of `ep`: the first E mod ep ranks have one more.
uint64_t expert_count(uint64_t E, uint64_t ep, uint64_t rank);
// Returns the index on this rank of each expert, [E]; -1: the expert is on another rank.
std::vector<int32_t> expert_map(uint64_t E, uint64_t ep, uint64_t rank, Placement placement);

struct RankSize {
  uint64_t tp_rank = 0, ep_rank = 0, experts = 0;  // experts: number of experts per MoE layer
  uint64_t bytes = 0, params = 0, kv_per_1k_tokens = 0;
};
// Returns one entry per (ep_rank, tp_rank). Attention, dense and shared MLPs, embedding and lm_head
// are divided by tp and repeated on every ep rank; experts are placed over ep, and each is divided
// by tp; routers, norms and small parameters are on every rank.
std::vector<RankSize> rank_sizes(const Checkpoint& checkpoint, uint64_t tp, uint64_t ep,
                                 Placement placement = Placement::kLinear);

}  // namespace moebius
