// SPDX-License-Identifier: Apache-2.0
// Expert-parallel load balancing: copies of busy experts ("physical" experts) and where they go.
// Pure functions of counts and loads; ties always go to the lower index, so every rank computes the
// same plan.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "quant/expert_copies.h"

namespace moebius {

struct EplbSettings {
  uint64_t logical = 0, redundant = 0;  // physical = logical + redundant
  uint64_t ranks = 1, groups = 1,
           nodes = 1;  // expert groups and machines, for the hierarchical plan
};
// Throws Error naming the numbers that do not fit (one rank, indivisible counts).
void check_eplb(const EplbSettings& settings);

// [physical] logical expert of every physical one at start: i, then i mod logical for the copies.
std::vector<uint32_t> initial_physical_map(uint64_t logical, uint64_t redundant);
// [logical] the physical copies of every logical expert, ascending.
std::vector<std::vector<uint32_t>> logical_to_physical(std::span<const uint32_t> physical_map,
                                                       uint64_t logical);

// Hands out copies: the expert with the largest load per copy gets the next one. Returns [physical]
// logical ids.
std::vector<uint32_t> replicate_experts(std::span<const double> load, uint64_t physical);
// Packs items onto bins of equal size, by descending weight into the lightest bin with room.
// Returns [items] bin.
std::vector<uint32_t> pack_balanced(std::span<const double> weight, uint64_t bins);
// The new plan: [physical] logical ids, rank r holding the r-th slice. Hierarchical where groups,
// nodes and ranks divide.
std::vector<uint32_t> rebalance(std::span<const double> load, const EplbSettings& settings);
// Reorders the slots inside every rank so that experts which stay on a rank keep their slot.
std::vector<uint32_t> keep_slots(std::span<const uint32_t> before, std::vector<uint32_t> after,
                                 uint64_t ranks);

}  // namespace moebius
