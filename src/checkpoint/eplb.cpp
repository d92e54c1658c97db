// SPDX-License-Identifier: Apache-2.0
// Implements the balancing of copies of experts over ranks (eplb.h).
#include "checkpoint/eplb.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace moebius {
namespace {

std::vector<uint32_t> by_descending(std::span<const double> weight) {
  std::vector<uint32_t> order(weight.size());
  std::iota(order.begin(), order.end(), 0u);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return weight[a] > weight[b]; });
  return order;
}

// Hands out copies of `logical` experts and packs them onto ranks. Returns the expert of each slot,
// rank by rank.
std::vector<uint32_t> plan_flat(std::span<const double> load, uint64_t physical, uint64_t ranks) {
  const std::vector<uint32_t> copies = replicate_experts(load, physical);
  std::vector<double> count(load.size(), 0.0), weight(physical);
  for (const uint32_t id : copies) count[id] += 1.0;
  for (size_t i = 0; i < copies.size(); ++i) weight[i] = load[copies[i]] / count[copies[i]];
  const std::vector<uint32_t> bin = pack_balanced(weight, ranks);
  std::vector<uint32_t> out;
  out.reserve(physical);
  for (uint64_t r = 0; r < ranks; ++r)
    for (size_t i = 0; i < copies.size(); ++i)
      if (bin[i] == r) out.push_back(copies[i]);
  return out;
}

}  // namespace

void check_eplb(const EplbSettings& s) {
  const uint64_t physical = s.logical + s.redundant;
  if (s.logical == 0) fail("load balancing needs experts; found 0");
  if (s.ranks < 2)
    fail("load balancing needs expert parallelism over at least 2 ranks; found {}", s.ranks);
  if (physical % s.ranks != 0)
    fail("{} physical experts ({} + {} copies) are not divisible by {} ranks", physical, s.logical,
         s.redundant, s.ranks);
  if (s.groups == 0 || s.nodes == 0)
    fail("load balancing with {} groups on {} nodes; expected at least 1", s.groups, s.nodes);
}

std::vector<uint32_t> initial_physical_map(uint64_t logical, uint64_t redundant) {
  if (logical == 0) fail("load balancing needs experts; found 0");
  std::vector<uint32_t> map(logical + redundant);
  for (size_t i = 0; i < map.size(); ++i) map[i] = static_cast<uint32_t>(i % logical);
  return map;
}

std::vector<std::vector<uint32_t>> logical_to_physical(std::span<const uint32_t> physical_map,
                                                       uint64_t logical) {
  std::vector<std::vector<uint32_t>> out(logical);
  for (size_t i = 0; i < physical_map.size(); ++i) {
    if (physical_map[i] >= logical)
      fail("physical expert {} holds logical {}; expected one below {}", i, physical_map[i],
           logical);
    out[physical_map[i]].push_back(static_cast<uint32_t>(i));
  }
  return out;
}

std::vector<uint32_t> replicate_experts(std::span<const double> load, uint64_t physical) {
  if (physical < load.size())
    fail("{} physical experts for {} logical ones; expected at least as many", physical,
         load.size());
  std::vector<uint32_t> out(load.size());
  std::iota(out.begin(), out.end(), 0u);
  std::vector<double> count(load.size(), 1.0);
  while (out.size() < physical) {
    size_t best = 0;
    for (size_t e = 1; e < load.size(); ++e)
      if (load[e] / count[e] > load[best] / count[best]) best = e;
    out.push_back(static_cast<uint32_t>(best));
    count[best] += 1.0;
  }
  return out;
}

std::vector<uint32_t> pack_balanced(std::span<const double> weight, uint64_t bins) {
  if (bins == 0 || weight.size() % bins != 0)
    fail("{} items cannot be packed evenly onto {} bins", weight.size(), bins);
  const size_t room = weight.size() / bins;
  std::vector<uint32_t> bin(weight.size(), 0);
  std::vector<double> sum(bins, 0.0);
  std::vector<size_t> used(bins, 0);
  for (const uint32_t item : by_descending(weight)) {
    size_t best = bins;
    for (size_t b = 0; b < bins; ++b)
      if (used[b] < room && (best == bins || sum[b] < sum[best])) best = b;
    bin[item] = static_cast<uint32_t>(best);
    sum[best] += weight[item];
    ++used[best];
  }
  return bin;
}

std::vector<uint32_t> rebalance(std::span<const double> load, const EplbSettings& s) {
  check_eplb(s);
  if (load.size() != s.logical)
    fail("{} loads for {} experts; expected one each", load.size(), s.logical);
  const uint64_t physical = s.logical + s.redundant;
  const bool hierarchical = s.nodes > 1 && s.groups > 1 && s.groups % s.nodes == 0 &&
                            s.ranks % s.nodes == 0 && s.logical % s.groups == 0 &&
                            physical % s.nodes == 0;
  if (!hierarchical) return plan_flat(load, physical, s.ranks);
  // Groups are placed on nodes first, so that a token's group stays on one machine; then every node
  // is planned by itself.
  const uint64_t per_group = s.logical / s.groups;
  std::vector<double> group_load(s.groups, 0.0);
  for (size_t e = 0; e < load.size(); ++e) group_load[e / per_group] += load[e];
  const std::vector<uint32_t> node_of_group = pack_balanced(group_load, s.nodes);
  std::vector<uint32_t> out;
  for (uint64_t node = 0; node < s.nodes; ++node) {
    std::vector<uint32_t> ids;
    std::vector<double> local;
    for (uint64_t g = 0; g < s.groups; ++g) {
      if (node_of_group[g] != node) continue;
      for (uint64_t e = g * per_group; e < (g + 1) * per_group; ++e) {
        ids.push_back(static_cast<uint32_t>(e));
        local.push_back(load[e]);
      }
    }
    for (const uint32_t id : plan_flat(local, physical / s.nodes, s.ranks / s.nodes))
      out.push_back(ids[id]);
  }
  return out;
}

std::vector<uint32_t> keep_slots(std::span<const uint32_t> before, std::vector<uint32_t> after,
                                 uint64_t ranks) {
  if (ranks == 0 || before.size() != after.size() || after.size() % ranks != 0)
    fail("{} old and {} new slots on {} ranks; expected equal numbers that divide", before.size(),
         after.size(), ranks);
  const size_t room = after.size() / ranks;
  for (uint64_t r = 0; r < ranks; ++r) {
    const size_t base = r * room;
    for (size_t i = 0; i < room; ++i) {
      if (after[base + i] == before[base + i]) continue;
      // Finds the expert that was in this slot among those not yet settled, and swaps it in.
      for (size_t j = 0; j < room; ++j) {
        const bool settled = after[base + j] == before[base + j];
        if (j != i && !settled && after[base + j] == before[base + i]) {
          std::swap(after[base + i], after[base + j]);
          break;
        }
      }
    }
  }
  return after;
}

}  // namespace moebius
