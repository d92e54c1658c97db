// SPDX-License-Identifier: Apache-2.0
// Chooses which copy of a busy expert serves a token. Every rank computes the same choice without
// communication, because it depends only on the routes of the step and the places of the experts.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace moebius {

// Lists the copies of each expert: expert e is in the places copies[first[e]] to copies[first[e +
// 1] - 1].
struct ExpertCopies {
  std::span<const uint32_t> first, copies;
  std::span<const uint32_t> rank_of;  // [places] the rank of each place
  size_t ranks = 1;
};

// Cost of reading the weights of one expert, in units of the cost of computing one row with it.
constexpr uint64_t kRowsOfReading = 8;

// Sets places[i] to the place that serves route ids[i] (-1: none). Experts with one place are
// assigned first; then each route takes the copy whose rank would finish soonest, including the
// reading of an expert that nothing has used there in this step.
inline void choose_copies(std::span<const int32_t> ids, const ExpertCopies& c,
                          std::span<int32_t> places) {
  std::vector<uint64_t> busy(c.ranks, 0);
  std::vector<bool> used(c.rank_of.size(), false);
  const auto cost = [&](uint32_t place) { return used[place] ? 1 : 1 + kRowsOfReading; };
  const auto take = [&](size_t i, uint32_t place) {
    busy[c.rank_of[place]] += cost(place);
    used[place] = true;
    places[i] = static_cast<int32_t>(place);
  };
  const auto count = [&](int32_t id) {
    return id < 0 ? 0 : c.first[static_cast<size_t>(id) + 1] - c.first[static_cast<size_t>(id)];
  };
  for (size_t i = 0; i < ids.size(); ++i) {
    places[i] = -1;
    if (count(ids[i]) == 1) take(i, c.copies[c.first[static_cast<size_t>(ids[i])]]);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const uint32_t n = count(ids[i]);
    if (n < 2) continue;
    const std::span<const uint32_t> all = c.copies.subspan(c.first[static_cast<size_t>(ids[i])], n);
    // Breaks ties differently from route to route.
    const size_t turn = i + static_cast<size_t>(ids[i]);
    uint32_t best = all[turn % n];
    const auto end = [&](uint32_t place) { return busy[c.rank_of[place]] + cost(place); };
    for (size_t k = 1; k < n; ++k)
      if (const uint32_t other = all[(turn + k) % n]; end(other) < end(best)) best = other;
    take(i, best);
  }
}

}  // namespace moebius
