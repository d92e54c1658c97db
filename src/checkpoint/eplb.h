// SPDX-License-Identifier: Apache-2.0
// Balances the load of expert parallelism: decides which busy experts get copies and which rank
// holds each copy. A physical expert is one copy of a logical expert. Pure functions of counts and
// loads; ties always go to the lower index, so every rank computes the same plan.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "quant/expert_copies.h"

namespace moebius {

struct EplbSettings {
  uint64_t logical = 0, redundant = 0;  // physical experts = logical + redundant
  // Number of expert groups and of machines, for the hierarchical plan.
  uint64_t ranks = 1, groups = 1, nodes = 1;
};
// Throws Error that names the numbers which do not fit (one rank, indivisible counts).
void check_eplb(const EplbSettings& settings);

// Returns [physical] the logical expert of each physical one at the start: i, then i mod logical
// for the copies.
std::vector<uint32_t> initial_physical_map(uint64_t logical, uint64_t redundant);
// Returns [logical] the physical copies of each logical expert, ascending.
std::vector<std::vector<uint32_t>> logical_to_physical(std::span<const uint32_t> physical_map,
                                                       uint64_t logical);

// Decides how many copies each expert gets: each further copy goes to the expert with the largest
// load per copy. Returns the logical expert of each copy, [physical].
std::vector<uint32_t> replicate_experts(std::span<const double> load, uint64_t physical);
// Distributes items over bins with equal numbers of items: by descending weight, each into the
// lightest bin with room. Returns [items] the bin of each.
std::vector<uint32_t> pack_balanced(std::span<const double> weight, uint64_t bins);
// Returns a new plan for these loads: the logical expert of each copy, [physical]; rank r holds the
// r-th of equal parts. Hierarchical if groups, nodes and ranks divide each other.
std::vector<uint32_t> rebalance(std::span<const double> load, const EplbSettings& settings);
// Reorders the slots within each rank of the plan `after` so that experts which stay on a rank keep
// their slot.
std::vector<uint32_t> keep_slots(std::span<const uint32_t> before, std::vector<uint32_t> after,
                                 uint64_t ranks);

}  // namespace moebius
