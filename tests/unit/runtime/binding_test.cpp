// SPDX-License-Identifier: Apache-2.0
// Which CPUs the ranks of a host take: what launchers give, and what becomes of it.
#include "runtime/binding.h"

#include <gtest/gtest.h>

#include <vector>

#include "runtime/affinity.h"
#include "runtime/comm.h"
#include "runtime/comm_threads.h"

namespace moebius::binding_test {
namespace {

using Mask = std::vector<int>;

// `nodes` nodes of `cores` cores each; with two hardware threads a core's second one is cpu + all
// cores.
Topology machine_of(int nodes, int cores, bool two = false) {
  Topology t;
  for (int rank = 0; rank < (two ? 2 : 1); ++rank)
    for (int n = 0; n < nodes; ++n)
      for (int c = 0; c < cores; ++c) {
        const int core = n * cores + c;
        t.threads.push_back({core + rank * nodes * cores, core, n, rank, false});
      }
  return t;
}

std::vector<Mask> parts_of(const Topology& machine, const std::vector<Mask>& masks) {
  std::vector<Mask> parts;
  for (size_t r = 0; r < masks.size(); ++r) parts.push_back(plan_binding(machine, masks, r).cpus);
  return parts;
}

TEST(Binding, WhatCoversTheHostStays) {
  const std::vector<Mask> masks{{0, 2}, {1, 3}};
  EXPECT_EQ(parts_of(machine_of(1, 4), masks), masks);
  EXPECT_FALSE(plan_binding(machine_of(1, 4), masks, 0).changed);
}

TEST(Binding, OneCoreEachIsWidened) {
  const std::vector<Mask> masks{{0}, {1}};
  EXPECT_EQ(parts_of(machine_of(2, 4), masks), (std::vector<Mask>{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_TRUE(plan_binding(machine_of(2, 4), masks, 1).changed);
}

TEST(Binding, NoBindingIsCutAlongNodes) {
  const Mask all{0, 1, 2, 3, 4, 5};
  EXPECT_EQ(parts_of(machine_of(3, 2), {all, all, all}),
            (std::vector<Mask>{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(parts_of(machine_of(2, 3), {all, all, all, all}),
            (std::vector<Mask>{{0}, {1, 2}, {3}, {4, 5}}));
}

TEST(Binding, HardwareThreadsOfACoreStayTogether) {
  const Mask all{0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(parts_of(machine_of(1, 4, true), {all, all}),
            (std::vector<Mask>{{0, 1, 4, 5}, {2, 3, 6, 7}}));
}

TEST(Binding, MoreRanksThanCoresShareAll) {
  const Mask all{0, 1};
  const std::vector<Mask> masks{{0}, {1}, {0}, {1}};
  for (size_t r = 0; r < 4; ++r) {
    const RankBinding b = plan_binding(machine_of(1, 2), masks, r);
    EXPECT_TRUE(b.crowded);
    EXPECT_EQ(b.cpus, all);
  }
}

TEST(Binding, OneRankTakesTheWholeHost) {
  EXPECT_EQ(parts_of(machine_of(1, 4), {{2}}), (std::vector<Mask>{{0, 1, 2, 3}}));
}

// Ranks as threads of this process: all have its mask; each ends with a part, or keeps it.
TEST(Binding, RanksOfThisHostPartItsCpus) {
  const Mask before = AffinityMask::current().cpus();
  run_thread_ranks({.ranks = 2}, [&](Comm& comm) {
    const RankBinding kept = bind_rank(comm, true, true);
    EXPECT_EQ(kept.cpus, before);
    EXPECT_TRUE(kept.note.empty());
    const RankBinding b = bind_rank(comm, false, true);
    EXPECT_EQ(b.ranks, 2u);
    EXPECT_EQ(AffinityMask::current().cpus(), b.cpus);
    EXPECT_EQ(b.changed, !b.note.empty());
    if (comm.rank() == 0) (void)AffinityMask::of(before).apply();
  });
  EXPECT_EQ(AffinityMask::current().cpus(), before);
}

}  // namespace
}  // namespace moebius::binding_test
