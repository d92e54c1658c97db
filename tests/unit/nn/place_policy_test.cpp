// SPDX-License-Identifier: Apache-2.0
// Places of experts: who gets one, who loses one, what a held place and a failed read mean, and
// random calls against an implementation that searches all places.
#include "nn/place_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <set>

namespace moebius::place_policy_test {
namespace {

constexpr uint32_t kNone = PlacePolicy::kNone;

// Gives places to experts [first, last), one step each.
void fill(PlacePolicy& policy, uint32_t first, uint32_t last) {
  for (uint32_t e = first; e < last; ++e) {
    policy.next_step();
    policy.give(e);
  }
}

// Uses experts [first, last) in one step of its own.
void use(PlacePolicy& policy, uint32_t first, uint32_t last) {
  policy.next_step();
  for (uint32_t e = first; e < last; ++e) policy.use(e);
}

void skip(PlacePolicy& policy, uint64_t steps) {
  for (uint64_t i = 0; i < steps; ++i) policy.next_step();
}

TEST(PlacePolicy, GivesEmptyPlacesFirstThenTheOldest) {
  PlacePolicy policy(8, 3);
  fill(policy, 0, 3);
  std::set<uint32_t> places;
  for (uint32_t e = 0; e < 3; ++e) places.insert(policy.place_of(e));
  EXPECT_EQ(places, (std::set<uint32_t>{0, 1, 2}));
  const uint32_t place = policy.place_of(0);
  policy.next_step();
  const PlacePolicy::Given given = policy.give(5);
  EXPECT_EQ(given.place, place);
  EXPECT_EQ(given.evicted, 0u);
  EXPECT_EQ(policy.place_of(0), kNone);
  EXPECT_EQ(policy.expert_in(place), 5u);
  EXPECT_EQ(policy.give(5).place, place) << "an expert with a place keeps it";
  EXPECT_EQ(policy.counts().misses, 4u);
}

TEST(PlacePolicy, AScanDoesNotEvictExpertsThatWereUsedAgain) {
  PlacePolicy policy(1000, 10);
  fill(policy, 0, 10);
  use(policy, 2, 10);
  fill(policy, 100, 1000);
  for (uint32_t e = 2; e < 10; ++e) EXPECT_NE(policy.place_of(e), kNone) << e;
}

TEST(PlacePolicy, SeveralUsesInAStepAreOne) {
  PlacePolicy policy(8, 5);
  fill(policy, 0, 5);
  policy.use(4);  // the step that gave it its place
  policy.use(4);
  EXPECT_EQ(policy.counts().hits, 0u);
  use(policy, 0, 4);
  policy.use(0);
  EXPECT_EQ(policy.counts().hits, 4u);
  EXPECT_EQ(policy.give(6).evicted, 4u);
}

// Expert 0 is used in 20 steps, experts 1 to 3 once so many steps later: one of these four goes.
uint32_t evicted_after(uint64_t steps) {
  PlacePolicy policy(16, 5);
  fill(policy, 0, 5);
  for (int i = 0; i < 20; ++i) use(policy, 0, 1);
  skip(policy, steps);
  use(policy, 1, 4);
  skip(policy, 8);
  policy.hold(policy.place_of(4));
  return policy.give(9).evicted;
}

TEST(PlacePolicy, UsesHalveWithSteps) {
  EXPECT_NE(evicted_after(16), 0u) << "20 uses a while ago are more than two";
  EXPECT_EQ(evicted_after(600), 0u);
}

TEST(PlacePolicy, UsesAreRememberedWithoutAPlace) {
  PlacePolicy policy(64, 5);
  fill(policy, 0, 5);
  for (int i = 0; i < 20; ++i) use(policy, 0, 1);
  policy.drop(0);
  fill(policy, 10, 11);
  fill(policy, 0, 1);
  for (const uint32_t oldest : {2u, 3u, 4u, 10u})
    EXPECT_EQ(policy.give(20 + oldest).evicted, oldest);
  EXPECT_NE(policy.give(40).evicted, 0u) << "used once since, and 20 times before";
}

TEST(PlacePolicy, ALayerThatRunsSoonKeepsItsExperts) {
  // Six layers of eight experts. Experts of layers 1, 2 and 4 are used alike; layer 2 runs.
  PlacePolicy policy(6 * 8, 3);
  for (const uint32_t layer : {1u, 2u, 4u}) policy.give(8 * layer);
  policy.next_step();
  policy.use(8 * 2);
  policy.hold(policy.place_of(8 * 2));
  EXPECT_EQ(policy.give(8 * 2 + 1).evicted, 8u) << "layer 4 comes before layer 1";
}

TEST(PlacePolicy, AHeldPlaceIsNeverGivenAway) {
  PlacePolicy policy(8, 2);
  fill(policy, 0, 2);
  const uint32_t first = policy.place_of(0), second = policy.place_of(1);
  policy.hold(first);
  policy.hold(first);
  policy.next_step();
  EXPECT_EQ(policy.give(2).place, second);
  policy.hold(second);
  EXPECT_EQ(policy.give(3).place, kNone);
  skip(policy, 2 * PlacePolicy::kColdSteps);
  EXPECT_EQ(policy.give_expected(3).place, kNone);
  EXPECT_EQ(policy.counts().misses, 3u) << "a refusal is no miss";
  policy.release(first);
  EXPECT_EQ(policy.give(3).place, kNone) << "held twice";
  policy.release(first);
  const PlacePolicy::Given given = policy.give(3);
  EXPECT_EQ(given.place, first);
  EXPECT_EQ(given.evicted, 0u);
}

TEST(PlacePolicy, ExpectedExpertsTakeOnlyEmptyOrColdPlaces) {
  PlacePolicy policy(16, 5);
  fill(policy, 0, 4);
  EXPECT_NE(policy.give_expected(8).place, kNone) << "an empty place";
  EXPECT_EQ(policy.give_expected(9).place, kNone) << "no place is cold";
  skip(policy, PlacePolicy::kColdSteps - 1);
  use(policy, 0, 4);
  EXPECT_EQ(policy.give_expected(9).evicted, 8u) << "expected 32 steps ago, and never used";
  skip(policy, 10 * PlacePolicy::kColdSteps);
  const PlacePolicy::Given given = policy.give_expected(10);
  EXPECT_EQ(given.evicted, 9u);
  for (uint32_t e = 0; e < 4; ++e) EXPECT_NE(policy.place_of(e), kNone) << "protected, if cold";
  EXPECT_EQ(policy.counts().expected_used, 0u);
  policy.use(10);
  policy.use(10);
  EXPECT_EQ(policy.counts().expected, 3u);
  EXPECT_EQ(policy.counts().expected_used, 1u);
  // The first use of an expected expert does not protect it.
  policy.next_step();
  EXPECT_EQ(policy.give(11).evicted, 10u);
}

TEST(PlacePolicy, AFailedReadEmptiesThePlace) {
  PlacePolicy policy(8, 2);
  fill(policy, 0, 2);
  const uint32_t place = policy.place_of(1);
  policy.hold(place);
  policy.drop(1);
  policy.drop(1);
  EXPECT_EQ(policy.place_of(1), kNone);
  EXPECT_EQ(policy.expert_in(place), kNone);
  EXPECT_EQ(policy.give(2).evicted, 0u) << "the reader still holds the empty place";
  policy.release(place);
  const PlacePolicy::Given given = policy.give(3);
  EXPECT_EQ(given.place, place);
  EXPECT_EQ(given.evicted, kNone);
  policy.drop(3);
  EXPECT_EQ(policy.give(4).place, place);
}

TEST(PlacePolicy, ResizeGivesBackTheLeastValuablePlacesAndNeverHeldOnes) {
  PlacePolicy policy(32, 10);
  fill(policy, 0, 9);  // one place stays empty
  use(policy, 0, 6);   // six are protected
  const uint32_t held = policy.place_of(6);
  policy.hold(held);
  std::vector<uint32_t> emptied;
  const std::vector<uint32_t> order = {policy.place_of(7), policy.place_of(8)};
  policy.resize(7, emptied);
  ASSERT_EQ(emptied.size(), 3u);
  EXPECT_EQ(policy.places(), 7u);
  EXPECT_EQ(std::vector<uint32_t>(emptied.begin() + 1, emptied.end()), order)
      << "the empty place, then probation";
  for (uint32_t e = 0; e < 7; ++e) EXPECT_NE(policy.place_of(e), kNone) << e;
  policy.resize(0, emptied);
  EXPECT_EQ(policy.places(), 1u);
  EXPECT_EQ(policy.place_of(6), held);
  EXPECT_EQ(policy.give(20).place, kNone);
  policy.release(held);
  policy.resize(100, emptied);
  EXPECT_EQ(policy.places(), 10u);
  EXPECT_EQ(emptied.size(), 9u);
  std::set<uint32_t> places;
  for (uint32_t e = 10; e < 20; ++e) places.insert(policy.give(e).place);
  EXPECT_EQ(places.size(), 10u);
}

TEST(PlacePolicy, NoPlacesAndNoExperts) {
  PlacePolicy policy(4, 0);
  EXPECT_EQ(policy.give(1).place, kNone);
  EXPECT_EQ(policy.give_expected(1).place, kNone);
  policy.use(1);
  EXPECT_EQ(policy.counts().hits, 0u);
  EXPECT_EQ(PlacePolicy(0, 0).experts(), 0u);
}

// Applies the rules by a search of all places, from the steps of all uses.
class Searched {
 public:
  Searched(size_t experts, size_t places) : experts_(experts), open_(places) {}
  struct Resident {
    uint64_t touched = 0;
    bool guarded = false, expected = false;
    uint32_t place = 0;
  };
  std::map<uint32_t, Resident> resident;
  std::map<uint32_t, std::set<uint64_t>> used;  // steps that used an expert
  uint64_t step = 1;
  uint32_t last = 0;

  // Uses per step by a count that is halved after so many steps.
  double rate(uint32_t expert, double half) const {
    const auto found = used.find(expert);
    const auto weight = [&](uint64_t at, uint64_t now = 0) {
      return std::exp2((static_cast<double>(at) - static_cast<double>(now == 0 ? step : now)) /
                       half);
    };
    double sum =
        resident.at(expert).expected && half < 2 ? 0.5 * weight(resident.at(expert).touched) : 0;
    if (found != used.end()) {
      const bool ahead = expert > last && found->second.count(step) == 0;
      for (const uint64_t at : found->second) sum += weight(at, step - ahead);
    }
    return sum * (1 - std::exp2(-1 / half));
  }
  double value(uint32_t expert) const {
    const double away = static_cast<double>((expert + experts_ - last - 1) % experts_);
    return -1 / (0.3 * rate(expert, 1) + 0.7 * rate(expert, 128) + 1e-6) -
           away / static_cast<double>(experts_);
  }
  // cold: steps since the last use, at least.
  double least(bool guarded, const std::set<uint32_t>& held, uint64_t cold) const {
    double least = INFINITY;
    for (const auto& [e, r] : resident)
      if (r.guarded == guarded && held.count(r.place) == 0 && step - r.touched >= cold)
        least = std::min(least, value(e));
    return least;
  }
  size_t guarded() const {
    return static_cast<size_t>(std::count_if(resident.begin(), resident.end(),
                                             [](const auto& r) { return r.second.guarded; }));
  }
  // Protects an expert that was used before.
  void guard_again(uint32_t expert, const std::set<uint32_t>& held) {
    if (used.at(expert).size() < 2 || resident.at(expert).guarded) return;
    resident.at(expert).guarded = true;
    while (guarded() > open_ * 4 / 5) {
      const double v = least(true, held, 0);
      if (v == INFINITY) return;
      for (auto& [e, r] : resident)
        if (r.guarded && held.count(r.place) == 0 && value(e) == v) {
          r.guarded = false;
          break;
        }
    }
  }

 private:
  size_t experts_, open_;
};

// Relative: the policy's counts are floats, and its sums have another order.
constexpr double kNear = 1e-5;

TEST(PlacePolicy, RandomCallsAgreeWithASearchOfAllPlaces) {
  constexpr uint32_t kExperts = 60;
  constexpr size_t kPlaces = 23;
  PlacePolicy policy(kExperts, kPlaces);
  Searched model(kExperts, kPlaces);
  std::mt19937 random(7);
  std::vector<uint32_t> held_list;
  std::set<uint32_t> held;
  size_t evictions = 0, from_protected = 0, refused = 0;
  for (int i = 0; i < 30000; ++i) {
    const uint32_t e = std::min<uint32_t>(static_cast<uint32_t>(random() % kExperts),
                                          static_cast<uint32_t>(random() % kExperts));
    // Stretches of many holds, in which few places can be given, alternate with many releases.
    const bool grabs = i / 300 % 2 == 0;
    const size_t what = random() % 16;
    const bool holds = what < (grabs ? 6 : 1), releases = !holds && what < (grabs ? 7 : 14);
    // Each step has one use at most, so that no two values are equal.
    policy.next_step();
    ++model.step;
    const auto found = model.resident.find(e);
    ASSERT_EQ(found != model.resident.end(), policy.place_of(e) != kNone);
    if (holds) {
      if (found == model.resident.end()) continue;
      policy.hold(found->second.place);
      held_list.push_back(found->second.place);
      held.insert(found->second.place);
    } else if (releases && !held_list.empty()) {
      const size_t which = random() % held_list.size();
      const uint32_t place = held_list[which];
      held_list.erase(held_list.begin() + static_cast<std::ptrdiff_t>(which));
      if (std::count(held_list.begin(), held_list.end(), place) == 0) held.erase(place);
      policy.release(place);
    } else if (found != model.resident.end()) {
      policy.use(e);
      model.used[e].insert(model.step);
      model.last = e;
      found->second.touched = model.step;
      found->second.expected = false;
      model.guard_again(e, held);
    } else {
      const bool expected = what == 15;
      const bool full = model.resident.size() == kPlaces;
      double least = model.least(false, held, expected ? PlacePolicy::kColdSteps : 0);
      const bool probation = least != INFINITY;
      if (!probation && !expected) least = model.least(true, held, 0);
      const PlacePolicy::Given given = expected ? policy.give_expected(e) : policy.give(e);
      if (given.place == kNone) {
        ++refused;
        ASSERT_TRUE(full);
        ASSERT_EQ(least, INFINITY);
        continue;
      }
      ASSERT_EQ(full, given.evicted != kNone);
      ASSERT_EQ(held.count(given.place), 0u);
      if (full) {
        ++evictions;
        const Searched::Resident& loser = model.resident.at(given.evicted);
        ASSERT_EQ(loser.place, given.place);
        ASSERT_NE(loser.guarded, probation);
        from_protected += loser.guarded;
        ASSERT_NEAR(model.value(given.evicted), least, kNear * std::abs(least));
        model.resident.erase(given.evicted);
      }
      model.resident[e] = {.touched = model.step, .expected = expected, .place = given.place};
      if (!expected) {
        model.used[e].insert(model.step);
        model.last = e;
        model.guard_again(e, held);
      }
    }
  }
  EXPECT_GT(evictions, 500u);
  EXPECT_GT(from_protected, 0u);
  EXPECT_GT(refused, 10u);
}

}  // namespace
}  // namespace moebius::place_policy_test
