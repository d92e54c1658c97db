// SPDX-License-Identifier: Apache-2.0
// What the planner is told of ranks (model/ranks/rank_costs.h), and what it makes of it (model/plan/rank_plan.h).
#include "model/ranks/rank_costs.h"

#include <gtest/gtest.h>

#include <cmath>

#include "model/plan/rank_plan.h"
#include "model/run/decoder.h"
#include "moebius/error.h"
#include "runtime/comm_threads.h"
#include "unit/test_util.h"

namespace moebius::rank_costs_test {
namespace {

Checkpoint golden(const std::string& name) {
  return Checkpoint::open((test::test_data_dir() / "golden" / name).string());
}

TEST(RankCosts, LinearBetweenWhatWasMeasuredAndAboveIt) {
  CostCurve c;
  EXPECT_FALSE(c.known());
  EXPECT_EQ(c.seconds(10, 3), 0);
  c.add(1, 2.0), c.add(4, 8.0), c.add(8, 7.0);  // the last was disturbed: not less than before
  EXPECT_EQ(c.seconds(10, 0.5), 20);
  EXPECT_EQ(c.seconds(10, 1), 20);
  EXPECT_EQ(c.seconds(10, 2), 40);
  EXPECT_EQ(c.seconds(10, 8), 80);
  EXPECT_EQ(c.seconds(10, 80), 800);
  EXPECT_EQ(c.seconds(10, 0), 0);
  EXPECT_THROW(c.add(8, 9), Error);
}

TEST(RankCosts, AllRanksHearTheSame) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  std::vector<RankFacts> facts(3);
  run_thread_ranks({.ranks = 3}, [&](Comm& comm) {
    ThreadPool pool(1);
    ModelOptions options;
    options.pool = &pool;
    facts[static_cast<size_t>(comm.rank())] =
        measure_ranks(comm, comm.rank() == 1 ? nullptr : &checkpoint, options);
  });
  for (const RankFacts& f : facts) {
    EXPECT_GT(f.link.latency, 0);
    EXPECT_GT(f.link.rate, 0);
    EXPECT_EQ(f.link.rate, facts[0].link.rate);
    EXPECT_FALSE(f.costs.experts.known());  // rank 1 had nothing to time
    const LinkFacts read = parse_link(describe(f.link));
    EXPECT_NEAR(read.latency, f.link.latency, 1e-9);
  }
}

TEST(RankCosts, EveryKindOfMatrixIsTimed) {
  ThreadPool pool(2);
  for (const char* folder : {"qwen3moe-w4a8-g32-pack", "deepseekv3-w4a8-g32"}) {
    const RankCosts costs = measure_layer_costs(golden(folder), LayerLoadOptions(), pool);
    for (const CostCurve* c : {&costs.experts, &costs.dense, &costs.output, &costs.layer}) {
      ASSERT_TRUE(c->known()) << folder;
      EXPECT_GT(c->seconds(1, 1), 0);
      EXPECT_GE(c->seconds(1, 100), c->seconds(1, 1));
    }
  }
}

// Where an expert costs the same for any number of rows, a step costs what it reads.
TEST(RankPlan, CountsTheExpertsThatABatchTouches) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  const MoeBlock& block = checkpoint.moe_blocks().front();
  const auto E = static_cast<double>(block.experts.size()),
             k = static_cast<double>(block.spec.router.top_k);
  RankQuestion q;
  q.ranks = 2;
  q.link = {1e-15, 1e18};
  for (CostCurve* c : {&q.node.costs.dense, &q.node.costs.output, &q.node.costs.layer})
    c->add(1, 0), c->add(1e9, 0);
  q.node.costs.experts.add(1, 1), q.node.costs.experts.add(1e9, 1);
  const auto step = [&](size_t ep, size_t batch) {
    q.batch = batch;
    const RankSplit split{1, ep == 1 ? size_t{2} : 1, ep};
    for (const RankForecast& f : plan_ranks(checkpoint, q))
      if (f.split == split) return f.step;
    return -1.0;
  };
  const double one = step(1, 1);  // k experts, half of each
  EXPECT_GT(one, 0);
  for (const size_t batch : {2u, 5u, 9u}) {
    const double touched = E * (1 - std::pow(1 - k / E, static_cast<double>(batch)));
    EXPECT_NEAR(step(1, batch) / one, touched / k, 0.06 * touched / k) << batch;
  }
  // The busiest of two ranks has more than half of them, and less so the more rows there are.
  EXPECT_GT(step(2, 1), 1.1 * one);
  EXPECT_LE(step(2, 1), 2 * one);
  EXPECT_LT(step(2, 64) / step(1, 64), step(2, 1) / one);
  EXPECT_GE(step(2, 64), step(1, 64));
}

}  // namespace
}  // namespace moebius::rank_costs_test
