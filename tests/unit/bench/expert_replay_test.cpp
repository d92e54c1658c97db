// SPDX-License-Identifier: Apache-2.0
// Replays of routing: known hit rates, the optimum by trying everything, and who comes before whom.
#include "bench/expert_replay.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace moebius::expert_replay_test {
namespace {

// One layer, one expert a token.
RouteTrace line_of(std::vector<uint16_t> experts, size_t count) {
  return {.layers = 1, .experts = count, .top_k = 1, .choices = std::move(experts)};
}

TEST(ExpertReplay, WantedExpertsAreThoseOfTheSequencesTogether) {
  const uint16_t none = RouteTrace::kNoExpert;
  // Four tokens, two layers, two choices.
  const RouteTrace t{.layers = 2,
                     .experts = 8,
                     .top_k = 2,
                     .choices = {1, 0, 5, 5, 2, 3, 4, none, 1, 7, 6, 5, 0, 0, none, none}};
  const WantedExperts one = wanted_experts(t, 1);
  EXPECT_EQ(one.wanted, (std::vector<uint32_t>{0, 1, 13, 2, 3, 12, 1, 7, 13, 14, 0}));
  EXPECT_EQ(one.group_end, (std::vector<size_t>{2, 3, 5, 6, 8, 10, 11, 11}));
  const WantedExperts two = wanted_experts(t, 2);  // tokens 0 and 2, then 1 and 3
  EXPECT_EQ(two.wanted, (std::vector<uint32_t>{0, 1, 7, 13, 14, 0, 2, 3, 12}));
  EXPECT_EQ(two.group_end, (std::vector<size_t>{3, 5, 8, 9}));
  EXPECT_EQ(wanted_experts(t, 3).group_end.size(), 2u);  // the fourth token is left over
  EXPECT_EQ(two.experts, 16u);
}

TEST(ExpertReplay, AllPlacesMissEachExpertOnce) {
  const WantedExperts w = wanted_experts(line_of({0, 1, 2, 0, 1, 2, 2, 2}, 4), 1);
  for (const std::string_view policy : kReplayPolicies)
    EXPECT_DOUBLE_EQ(replay_hits(policy, w, 4), 5.0 / 8) << policy;
  EXPECT_EQ(replay_hits("lru", WantedExperts(), 4), 0);
}

TEST(ExpertReplay, ACircleOneLongerThanMemoryDefeatsLruOnly) {
  std::vector<uint16_t> circle;
  for (uint16_t i = 0; i < 500; ++i) circle.push_back(i % 5);
  const WantedExperts w = wanted_experts(line_of(circle, 5), 1);
  EXPECT_EQ(replay_hits("lru", w, 4), 0);
  EXPECT_NEAR(replay_hits("optimum", w, 4), 0.75, 0.01);
}

TEST(ExpertReplay, AScanTakesLessFromSegmentsThanFromLru) {
  // Experts 0 to 3 twice, then eight that never come again.
  std::vector<uint16_t> experts;
  for (uint16_t i = 0; i < 100; ++i) {
    experts.insert(experts.end(), {0, 1, 2, 3, 0, 1, 2, 3});
    for (uint16_t j = 0; j < 8; ++j) experts.push_back(static_cast<uint16_t>(4 + 8 * i + j));
  }
  const WantedExperts w = wanted_experts(line_of(experts, 804), 1);
  EXPECT_DOUBLE_EQ(replay_hits("lru", w, 7), 0.25);
  EXPECT_NEAR(replay_hits("slru", w, 7), 0.5, 0.01);
  EXPECT_NEAR(replay_hits("moebius", w, 7), 0.5, 0.01);
}

// Most hits that any choice of victims gives.
size_t most_hits(const std::vector<uint16_t>& wanted, size_t at, std::set<uint16_t> there,
                 size_t places) {
  if (at == wanted.size()) return 0;
  if (there.count(wanted[at]) > 0) return 1 + most_hits(wanted, at + 1, there, places);
  if (there.size() < places) {
    there.insert(wanted[at]);
    return most_hits(wanted, at + 1, there, places);
  }
  size_t best = 0;
  for (const uint16_t victim : std::set<uint16_t>(there)) {
    std::set<uint16_t> then = there;
    then.erase(victim);
    then.insert(wanted[at]);
    best = std::max(best, most_hits(wanted, at + 1, then, places));
  }
  return best;
}

TEST(ExpertReplay, TheOptimumIsTheBestOfAllChoices) {
  std::mt19937 random(3);
  for (int round = 0; round < 40; ++round) {
    std::vector<uint16_t> wanted(12);
    for (uint16_t& e : wanted) e = static_cast<uint16_t>(random() % 5);
    const WantedExperts w = wanted_experts(line_of(wanted, 5), 1);
    EXPECT_DOUBLE_EQ(replay_hits("optimum", w, 3) * 12,
                     static_cast<double>(most_hits(wanted, 0, {}, 3)));
  }
}

TEST(ExpertReplay, NobodyBeatsTheOptimum) {
  std::mt19937 random(5);
  RouteTrace t{.layers = 3, .experts = 32, .top_k = 4, .choices = {}};
  for (size_t token = 0; token < 400; ++token)
    for (size_t i = 0; i < t.layers * t.top_k; ++i)  // topics that last for 50 tokens
      t.choices.push_back(static_cast<uint16_t>((token / 50 * 7 + random() % 10) % t.experts));
  for (const size_t sequences : {1u, 4u})
    for (const size_t places : {8u, 20u, 40u}) {
      const WantedExperts w = wanted_experts(t, sequences);
      const double best = replay_hits("optimum", w, places);
      for (const std::string_view policy : {"lru", "slru", "moebius"}) {
        const double hits = replay_hits(policy, w, places);
        EXPECT_LE(hits, best) << policy << " " << places;
        EXPECT_GT(hits, places == 8 ? -1 : best / 4) << policy << " " << places;
      }
    }
}

}  // namespace
}  // namespace moebius::expert_replay_test
