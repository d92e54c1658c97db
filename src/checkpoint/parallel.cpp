// SPDX-License-Identifier: Apache-2.0
// Divides heads, layers and experts among ranks (parallel.h).
#include "checkpoint/parallel.h"

#include <algorithm>

#include "base/checked.h"
#include "base/error.h"

namespace moebius {
namespace {

void check_rank(uint64_t size, uint64_t rank, std::string_view what) {
  if (size == 0 || rank >= size)
    fail("{} rank {} of {}; expected a rank below the size", what, rank, size);
}

}  // namespace

Cut cut_of(const Module& m, Cut second) {
  if (m.kind == ModuleKind::kEmbedding || m.kind == ModuleKind::kLmHead) return Cut::kOutputs;
  if (m.projection == Projection::kGate || m.projection == Projection::kUp) return Cut::kOutputs;
  if (m.projection == Projection::kDown) return second;
  if (m.kind != ModuleKind::kLinear) return Cut::kWhole;
  const size_t dot = m.name.rfind('.');
  const std::string_view last =
      std::string_view(m.name).substr(dot == std::string::npos ? 0 : dot + 1);
  if (last == "q_proj" || last == "k_proj" || last == "v_proj" || last == "q_b_proj" ||
      last == "kv_b_proj")
    return Cut::kOutputs;
  if (last == "o_proj") return second;
  // Every rank has low-rank projections, gates of shared experts and state-space parameters.
  return Cut::kWhole;
}

HeadCut head_cut(uint64_t heads, uint64_t kv_heads, uint64_t ranks, uint64_t rank) {
  check_rank(ranks, rank, "tensor-parallel");
  if (kv_heads == 0 || heads % kv_heads != 0)
    fail("{} heads for {} key-value heads; expected a multiple", heads, kv_heads);
  const uint64_t each = heads / kv_heads;
  if (kv_heads >= ranks) {
    const Range kv{kv_heads * rank / ranks, kv_heads * (rank + 1) / ranks};
    const Range own{kv.begin * each, kv.end * each};
    return {own, kv, own};
  }
  const uint64_t group = rank * kv_heads / ranks, first = ceil_div(group * ranks, kv_heads),
                 sharers = ceil_div((group + 1) * ranks, kv_heads) - first, i = rank - first;
  const Range given{group * each + each * i / sharers, group * each + each * (i + 1) / sharers};
  // A rank without a head of its own computes one whose result nobody uses.
  const Range own = given.size() > 0 ? given : Range{group * each, group * each + 1};
  return {own, {group, group + 1}, given};
}

std::vector<size_t> stage_layers(std::span<const uint64_t> bytes, uint64_t first_bytes,
                                 const std::vector<bool>& may_begin, uint64_t stages) {
  const size_t n = bytes.size();
  std::vector<uint64_t> before(n + 1, 0);  // bytes of all layers before
  for (size_t i = 0; i < n; ++i) before[i + 1] = before[i] + bytes[i];
  size_t most = 0;
  for (size_t i = 0; i < n; ++i) most += i == 0 || may_begin[i] ? 1 : 0;
  if (stages == 0 || stages > most)
    fail("num_hidden_layers is {}: they make at most {} stages{}; {} were asked for", n, most,
         most < n ? ", since layers that read another's keys stay with it" : "", stages);
  // best[s][i]: bytes of the largest stage when the first i layers form s stages, and the first
  // layer of the last stage.
  constexpr uint64_t kNever = UINT64_MAX;
  std::vector<std::vector<uint64_t>> best(stages + 1, std::vector<uint64_t>(n + 1, kNever));
  std::vector<std::vector<size_t>> last(stages + 1, std::vector<size_t>(n + 1, 0));
  for (size_t i = 1; i <= n; ++i) best[1][i] = before[i] + first_bytes;
  for (uint64_t s = 2; s <= stages; ++s)
    for (size_t i = 1; i <= n; ++i)
      for (size_t from = 1; from < i; ++from) {
        if (!may_begin[from] || best[s - 1][from] == kNever) continue;
        const uint64_t largest = std::max(best[s - 1][from], before[i] - before[from]);
        if (largest < best[s][i]) {
          best[s][i] = largest;
          last[s][i] = from;
        }
      }
  std::vector<size_t> out(stages + 1, 0);
  out[stages] = n;
  for (uint64_t s = stages; s > 1; --s) out[s - 1] = last[s][out[s]];
  return out;
}

uint64_t expert_count(uint64_t E, uint64_t ep, uint64_t rank) {
  check_rank(ep, rank, "expert-parallel");
  return E / ep + (rank < E % ep ? 1 : 0);
}

std::vector<int32_t> expert_map(uint64_t E, uint64_t ep, uint64_t rank, Placement placement) {
  const uint64_t count = expert_count(E, ep, rank);
  std::vector<int32_t> map(E, -1);
  const uint64_t first = E / ep * rank + std::min(rank, E % ep);
  for (uint64_t i = 0; i < count; ++i)
    map[placement == Placement::kLinear ? first + i : rank + i * ep] = static_cast<int32_t>(i);
  return map;
}

}  // namespace moebius
