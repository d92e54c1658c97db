// SPDX-License-Identifier: Apache-2.0
#include "model/plan/rank_memory.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/human.h"

namespace moebius {
namespace {

// Holds a limit, its free bytes, and the ranks that share it.
struct Shared {
  const MemoryLimit* limit;
  std::vector<size_t> ranks;
};

std::vector<Shared> shared_limits(std::span<const RankMemory> ranks) {
  std::vector<Shared> all;
  for (size_t r = 0; r < ranks.size(); ++r)
    for (const MemoryLimit& limit : ranks[r].limits) {
      const auto same = std::find_if(all.begin(), all.end(), [&](const Shared& s) {
        return s.limit->of == limit.of && ranks[s.ranks[0]].host == ranks[r].host;
      });
      if (same == all.end()) {
        all.push_back({&limit, {r}});
        continue;
      }
      if (limit.free < same->limit->free) same->limit = &limit;
      same->ranks.push_back(r);
    }
  return all;
}

uint64_t needed(std::span<const RankMemory> ranks, const Shared& s) {
  uint64_t bytes = 0;
  for (const size_t r : s.ranks) bytes += ranks[r].weights + kWorkingMemory;
  return bytes;
}

std::string human(uint64_t bytes) { return human_bytes(bytes); }

std::string names_of(std::span<const RankMemory> ranks, const Shared& s) {
  if (ranks.size() == 1) return "this model needs";
  if (s.ranks.size() == 1)
    return fmt::format("rank {} ({}) needs", s.ranks[0], ranks[s.ranks[0]].host);
  return fmt::format("ranks {} on {} need", fmt::join(s.ranks, ", "), ranks[s.ranks[0]].host);
}

}  // namespace

void let_weights_go(std::span<RankMemory> ranks) {
  for (const Shared& s : shared_limits(ranks)) {
    const uint64_t most = s.limit->free / 4 * 3 / s.ranks.size();
    for (const size_t r : s.ranks)
      ranks[r].weights = std::min(ranks[r].weights, most - std::min(most, kWorkingMemory));
  }
}

std::string memory_refusal(std::span<const RankMemory> ranks) {
  for (const Shared& s : shared_limits(ranks)) {
    const uint64_t bytes = needed(ranks, s);
    if (bytes <= s.limit->free) continue;
    return fmt::format(
        "{} {} of memory for weights and work, and {} of {} are free: {} are missing{}",
        names_of(ranks, s), human(bytes), human(s.limit->free), s.limit->of,
        human(bytes - s.limit->free),
        ranks.size() == 1
            ? "; --pack-dir (pack_dir in programs) runs it from a file, and ranks on several "
              "machines can share it"
            : "");
  }
  return "";
}

uint64_t memory_left(std::span<const RankMemory> ranks) {
  uint64_t least = UINT64_MAX;
  for (const Shared& s : shared_limits(ranks)) {
    const uint64_t bytes = needed(ranks, s);
    least = std::min(least, (s.limit->free > bytes ? s.limit->free - bytes : 0) / s.ranks.size());
  }
  return least == UINT64_MAX ? 0 : std::max<uint64_t>(least, 1);
}

}  // namespace moebius
