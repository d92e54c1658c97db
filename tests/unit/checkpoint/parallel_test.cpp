// SPDX-License-Identifier: Apache-2.0
// Placement of experts, load balancing: known vectors and the laws they obey.
#include <gtest/gtest.h>

#include <numeric>
#include <set>

#include "checkpoint/eplb.h"
#include "checkpoint/parallel.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::parallel_test {
namespace {

TEST(ExpertPlacement, Vectors) {
  std::vector<uint64_t> counts;
  for (uint64_t r = 0; r < 4; ++r) counts.push_back(expert_count(10, 4, r));
  EXPECT_EQ(counts, (std::vector<uint64_t>{3, 3, 2, 2}));
  EXPECT_EQ(expert_map(10, 4, 1, Placement::kLinear),
            (std::vector<int32_t>{-1, -1, -1, 0, 1, 2, -1, -1, -1, -1}));
  EXPECT_EQ(expert_map(9, 2, 0, Placement::kRoundRobin),
            (std::vector<int32_t>{0, -1, 1, -1, 2, -1, 3, -1, 4}));
}

TEST(ExpertPlacement, EveryExpertHasOnePlace) {
  for (const Placement p : {Placement::kLinear, Placement::kRoundRobin})
    for (uint64_t E = 1; E <= 20; ++E)
      for (uint64_t ep = 1; ep <= E; ++ep) {
        std::vector<int> owners(E, 0);
        for (uint64_t r = 0; r < ep; ++r) {
          const std::vector<int32_t> map = expert_map(E, ep, r, p);
          for (uint64_t e = 0; e < E; ++e) {
            if (map[e] < 0) continue;
            ++owners[e];
            if (p == Placement::kRoundRobin) {
              EXPECT_EQ(e, r + static_cast<uint64_t>(map[e]) * ep);
            }
          }
        }
        EXPECT_EQ(owners, std::vector<int>(E, 1));
      }
  EXPECT_TRUE(contains(error_of([] { expert_count(4, 2, 2); }), "rank 2 of 2"));
}

TEST(Eplb, InitialMap) {
  EXPECT_EQ(initial_physical_map(4, 3), (std::vector<uint32_t>{0, 1, 2, 3, 0, 1, 2}));
  const auto copies = logical_to_physical(initial_physical_map(4, 3), 4);
  EXPECT_EQ(copies[1], (std::vector<uint32_t>{1, 5}));
  EXPECT_EQ(copies[3], (std::vector<uint32_t>{3}));
}

// Expert 0 is at places 0 and 3, on ranks 0 and 1; 1 and 2 are at rank 0 alone, 3 at rank 1.
TEST(Eplb, TheCopyOfTheIdlerRankServes) {
  const std::vector<uint32_t> first = {0, 2, 3, 4, 5}, copies = {0, 3, 1, 2, 4},
                              rank_of = {0, 0, 0, 1, 1};
  const auto places = [&](std::vector<int32_t> ids) {
    std::vector<int32_t> out(ids.size());
    choose_copies(ids, {first, copies, rank_of, 2}, out);
    return out;
  };
  EXPECT_EQ(places({0, 1}), (std::vector<int32_t>{3, 1})) << "of one token too";
  EXPECT_EQ(places({3, 0}), (std::vector<int32_t>{4, 0}));
  EXPECT_EQ(places({-1, 2, 0}), (std::vector<int32_t>{-1, 2, 3}));
  EXPECT_EQ(places({0, 0, 0, 1}), (std::vector<int32_t>{3, 3, 3, 1})) << "read once where few rows";
  std::vector<int32_t> many(200, 0), served(5, 0);
  for (const int32_t p : places(many)) ++served[static_cast<size_t>(p)];
  EXPECT_EQ(served, (std::vector<int32_t>{100, 0, 0, 100, 0})) << "and shared by many";
  const std::vector<int32_t> turns = places({0}), again = places({-1, 0});
  EXPECT_NE(turns.back(), again.back()) << "equals take turns";
}

TEST(Eplb, CopiesGoToTheBusiest) {
  const std::vector<double> load = {90, 10, 40, 20};
  // 90 -> 45 + 45; then 45 is still the largest load per copy.
  EXPECT_EQ(replicate_experts(load, 6), (std::vector<uint32_t>{0, 1, 2, 3, 0, 0}));
  EXPECT_EQ(pack_balanced(std::vector<double>{5, 4, 3, 2}, 2), (std::vector<uint32_t>{0, 1, 1, 0}));
  EXPECT_EQ(pack_balanced(std::vector<double>{9, 1, 1, 1}, 2), (std::vector<uint32_t>{0, 1, 1, 0}))
      << "room before weight";
}

TEST(Eplb, RebalancePlacesEveryExpert) {
  std::vector<double> load(16);
  for (size_t i = 0; i < load.size(); ++i) load[i] = static_cast<double>((i * 37) % 23 + 1);
  for (const EplbSettings& s : {EplbSettings{16, 8, 4, 1, 1}, EplbSettings{16, 8, 4, 4, 2}}) {
    const std::vector<uint32_t> plan = rebalance(load, s);
    ASSERT_EQ(plan.size(), 24u);
    EXPECT_EQ(std::set<uint32_t>(plan.begin(), plan.end()).size(), 16u);
    std::vector<double> copies(16, 0), rank(4, 0);
    for (const uint32_t e : plan) copies[e] += 1;
    for (size_t i = 0; i < plan.size(); ++i) rank[i / 6] += load[plan[i]] / copies[plan[i]];
    const double mean = std::accumulate(load.begin(), load.end(), 0.0) / 4;
    for (const double r : rank) EXPECT_LT(r, 1.35 * mean) << "groups " << s.groups;
    if (s.nodes != 2) continue;  // a group's experts and copies stay on one node
    for (size_t i = 0; i < plan.size(); ++i)
      for (size_t j = 0; j < plan.size(); ++j)
        if (plan[i] / 4 == plan[j] / 4) {
          EXPECT_EQ(i / 12, j / 12);
        }
  }
}

TEST(Eplb, ExpertsThatStayKeepTheirSlot) {
  const std::vector<uint32_t> before = {0, 1, 2, 3, 4, 5}, after = {2, 0, 7, 5, 4, 3};
  EXPECT_EQ(keep_slots(before, after, 2), (std::vector<uint32_t>{0, 7, 2, 3, 4, 5}));
}

TEST(Eplb, ConstraintsNameTheNumbers) {
  EXPECT_TRUE(contains(error_of([] {
                         check_eplb({8, 1, 4, 1, 1});
                       }),
                       "9 physical experts (8 + 1 copies) are not divisible by 4 ranks"));
  EXPECT_TRUE(contains(error_of([] { check_eplb({8, 0, 1, 1, 1}); }), "at least 2 ranks; found 1"));
  EXPECT_TRUE(contains(error_of([] {
                         replicate_experts(std::vector<double>{1, 2}, 1);
                       }),
                       "1 physical experts for 2 logical"));
}

}  // namespace
}  // namespace moebius::test::parallel_test
