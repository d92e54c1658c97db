// SPDX-License-Identifier: Apache-2.0
// Replays recorded routing through policies that decide which experts stay in memory, and counts
// how often an expert was there.
#pragma once
#include <string_view>

#include "apps/route_trace.h"

namespace moebius {

// The experts that steps want, numbered through all layers.
struct WantedExperts {
  size_t experts = 0, layers = 0;
  std::vector<uint32_t> wanted;   // each expert once per step
  std::vector<size_t> group_end;  // [steps * layers] index where the experts of a layer end
};
// Makes every token a step of its own. sequences: the trace is divided into so many runs of equal
// length that advance together, one token of each in a step; what is left over is dropped.
WantedExperts wanted_experts(const RouteTrace& trace, size_t sequences);

// lru: the expert goes that was not used for the most steps. slru: the same in two segments of 1:4,
// of which the second has experts that were used again. moebius: PlacePolicy. optimum: the expert
// goes whose next use is farthest, which needs the future.
inline constexpr std::string_view kReplayPolicies[] = {"lru", "slru", "moebius", "optimum"};
// Returns the share of wanted experts that were in memory, which is empty at first. Experts of the
// layer that runs keep their places while there are others.
double replay_hits(std::string_view policy, const WantedExperts& wanted, size_t places);

}  // namespace moebius
