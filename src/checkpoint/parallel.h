// SPDX-License-Identifier: Apache-2.0
// What one rank of a tensor-parallel or expert-parallel run holds: slices of tensors, placement of
// experts, sizes. Pure functions; numbers that do not divide are errors that name them.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "quant/slice.h"

namespace moebius {

// How tensor parallelism cuts a matrix w[N,K]: not at all (every rank has it), by outputs (rows of
// w; ranks put their outputs side by side, which changes no byte) or by inputs (columns of w; ranks
// add their outputs).
enum class Cut : uint8_t { kWhole, kOutputs, kInputs };
// `second`: kOutputs or kInputs, for the matrices that read what others were cut for (o_proj, down).
// By inputs they read just what their rank has, and a caller brings the sum; by outputs their input
// rows are gathered first.
Cut cut_of(const Module& module, Cut second = Cut::kInputs);

// Heads of attention on a rank: whole groups of query heads with one key-value head; where there are
// fewer key-value heads than ranks, some of a group's heads, and the key-value head is repeated.
struct HeadCut {
  Range heads, kv_heads;  // computed here
  Range given;            // of `heads`, those that this rank gives to the others; may be none
};
HeadCut head_cut(uint64_t heads, uint64_t kv_heads, uint64_t ranks, uint64_t rank);

// Layers of `stages` stages: first layers of each, and the number of layers. Stages are as even as
// cuts allow: bytes[i] of layer i, `first_bytes` more in the first stage; a stage may begin with
// layer i where may_begin[i]. Throws Error when there are fewer such layers than stages.
std::vector<size_t> stage_layers(std::span<const uint64_t> bytes, uint64_t first_bytes,
                                 const std::vector<bool>& may_begin, uint64_t stages);

// A piece of one stored tensor, in stored units (bytes, words, groups). dim < 0: the whole tensor.
struct TensorSlice {
  int dim = -1;
  uint64_t begin = 0, count = 0;
  bool operator==(const TensorSlice&) const = default;
};

// The part of `role` that rank `rank` of `tp` needs. Scales cover every group or block that the
// slice touches, so a slice may begin inside one (QuantMatrix has phases for that). A bias of a
// module cut along its inputs is whole: one rank adds it.
TensorSlice tp_slice(const MatrixPlan& plan, Role role, Cut cut, uint64_t tp, uint64_t rank);

enum class Placement : uint8_t { kLinear, kRoundRobin };
// How many of E experts rank `rank` of `ep` holds: the first E mod ep ranks hold one more.
uint64_t expert_count(uint64_t E, uint64_t ep, uint64_t rank);
// [E] local slot of every expert on this rank, or -1.
std::vector<int32_t> expert_map(uint64_t E, uint64_t ep, uint64_t rank, Placement placement);
// Round robin: position of expert `id` when the ranks' lists are laid end to end, and back.
uint64_t round_robin_physical(uint64_t id, uint64_t E, uint64_t ep);
uint64_t round_robin_expert(uint64_t physical, uint64_t E, uint64_t ep);

struct RankSize {
  uint64_t tp_rank = 0, ep_rank = 0, experts = 0;  // experts per MoE layer
  uint64_t bytes = 0, params = 0, kv_per_1k_tokens = 0;
};
// One entry per (ep_rank, tp_rank). Attention, dense and shared MLPs, embedding and lm_head are cut
// tp ways and repeated on every ep rank; experts are placed over ep and each cut tp ways; routers,
// norms and small parameters are everywhere.
std::vector<RankSize> rank_sizes(const Checkpoint& checkpoint, uint64_t tp, uint64_t ep,
                                 Placement placement = Placement::kLinear);

}  // namespace moebius
