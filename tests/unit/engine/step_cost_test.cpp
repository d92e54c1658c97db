// SPDX-License-Identifier: Apache-2.0
// The cost model and the choice of rows, on times that the tests make up.
#include <gtest/gtest.h>

#include <numeric>

#include "engine/step_cost.h"
#include "unit/engine/engine_util.h"

namespace moebius::step_cost_test {
namespace {

Profile phases(uint64_t attention, uint64_t output = 0) {
  Profile p{};
  p[static_cast<size_t>(Phase::kAttention)] = attention;
  p[static_cast<size_t>(Phase::kOutput)] = output;
  return p;
}

// Milliseconds per layer of a 30B model on two cores: 1 row 0.68, 8 rows 3.49, 32 rows 10.9, 128
// rows 36.
StepCost measured() {
  StepCost c;
  c.measure({1, 0, 0}, 680000, {});
  c.measure({8, 0, 0}, 3490000, {});
  c.measure({32, 0, 0}, 10900000, {});
  c.measure({128, 0, 0}, 36000000, {});
  return c;
}

size_t total(const std::vector<size_t>& pieces) {
  return std::accumulate(pieces.begin(), pieces.end(), size_t{0});
}

TEST(StepCost, IsLinearBetweenMeasurements) {
  const StepCost c = measured();
  EXPECT_DOUBLE_EQ(c.predict({1, 0, 0}), 680000);
  EXPECT_DOUBLE_EQ(c.predict({20, 0, 0}), (3490000 + 10900000) / 2.0);
  EXPECT_DOUBLE_EQ(c.predict({224, 0, 0}), 36000000 + (36000000 - 10900000));
}

TEST(StepCost, AttentionAndLogitsAreSeparate) {
  StepCost c;
  c.measure({8, 8, 1000}, 10000, phases(2000, 3000));
  EXPECT_DOUBLE_EQ(c.predict({8, 8, 1000}), 10000);
  EXPECT_DOUBLE_EQ(c.predict({8, 8, 2000}), 12000);
  EXPECT_DOUBLE_EQ(c.predict({8, 0, 0}), 5000);
}

TEST(StepCost, FollowsWhatItMeasures) {
  StepCost c = measured();
  for (int i = 0; i < 200; ++i) c.observe({32, 0, 0}, 21800000, {});
  EXPECT_NEAR(c.correction(), 2, 0.01);
  EXPECT_NEAR(c.predict({8, 0, 0}), 6980000, 50000);
  StepCost unknown;
  EXPECT_FALSE(unknown.known());
  unknown.observe({32, 0, 0}, 320, {});
  EXPECT_TRUE(unknown.known());
  EXPECT_DOUBLE_EQ(unknown.predict({64, 0, 0}), 640);
}

// Prompts beside decoding that cost more than rows of their number did at the start: pieces shrink
// until the step is as long as it may be, on a machine of any speed.
TEST(StepPlan, MixedStepsAreCorrectedByThemselves) {
  StepShape decode;
  for (int i = 0; i < 8; ++i) decode.add(0, 1, 0);
  const std::vector<PromptInLine> one = {{0, 4096}};
  const StepCost first = measured();
  for (const double slow : {1.0, 2.0}) {
    StepCost c = measured();
    const auto took = [&](const StepShape& s) {
      return slow * (s.mixed() ? 1.45 : 1.0) * first.predict({s.rows, 0, 0});
    };
    StepShape mixed;
    for (int i = 0; i < 200; ++i) {
      c.observe(decode, static_cast<uint64_t>(took(decode)), {});
      mixed = decode;
      mixed.add(0, total(plan_prompts(c, decode, one, {})), 0);
      c.observe(mixed, static_cast<uint64_t>(took(mixed)), {});
    }
    EXPECT_LE(took(mixed), 3.05 * took(decode));
    EXPECT_GE(took(mixed), 2.8 * took(decode));
    EXPECT_NEAR(c.correction(), slow, 0.01);
  }
}

TEST(StepPlan, APieceStretchesTheStepAtMostSoMuch) {
  const StepCost c = measured();
  const std::vector<PromptInLine> one = {{0, 4096}};
  for (const size_t decoding : {8u, 32u}) {
    const StepShape decode{decoding, 0, 0};
    const size_t n = total(plan_prompts(c, decode, one, {}));
    EXPECT_LE(c.predict({decoding + n, 0, 0}), 3 * c.predict(decode) * (1 + 1e-9));
    EXPECT_GT(c.predict({decoding + n + 1, 0, 0}), 3 * c.predict(decode)) << decoding;
  }
  EXPECT_EQ(total(plan_prompts(c, {8, 0, 0}, one, {})), 22u);
  EXPECT_EQ(total(plan_prompts(c, {32, 0, 0}, one, {})), 83u);
  PlanLimits tight;
  tight.stretch = 1;
  EXPECT_EQ(total(plan_prompts(c, {8, 0, 0}, one, tight)), 8u);  // never less
}

TEST(StepPlan, AloneUpToTheLongestStep) {
  const StepCost c = measured();
  const std::vector<PromptInLine> one = {{0, 4096}}, little = {{0, 100}};
  EXPECT_EQ(total(plan_prompts(c, {}, one, {})), 512u);
  EXPECT_EQ(total(plan_prompts(c, {}, little, {})), 100u);
  PlanLimits brief;
  brief.max_step = 36000000;
  EXPECT_EQ(total(plan_prompts(c, {}, one, brief)), 128u);
  EXPECT_EQ(total(plan_prompts(StepCost(), {}, one, {})), 32u);  // to see what it costs
}

TEST(StepPlan, HalfToTheOldestHalfToTheShortest) {
  EXPECT_EQ(share_out(std::vector<PromptInLine>{{0, 1000}, {0, 500}, {0, 40}}, 100),
            (std::vector<size_t>{60, 0, 40}));
  EXPECT_EQ(share_out(std::vector<PromptInLine>{{0, 1000}, {0, 500}, {0, 400}}, 101),
            (std::vector<size_t>{51, 0, 50}));
  EXPECT_EQ(share_out(std::vector<PromptInLine>{{0, 10}, {0, 500}, {0, 400}}, 100),
            (std::vector<size_t>{10, 90, 0}));
  EXPECT_EQ(share_out(std::vector<PromptInLine>{{0, 500, 32}, {0, 600, 32}}, 100),
            (std::vector<size_t>{32, 32}));
  EXPECT_EQ(share_out({}, 100), std::vector<size_t>{});
}

TEST(StepPlan, AShortPromptPassesALongOneAndDecodingGoesOn) {
  EngineOptions o;
  o.parallel = 12;
  o.kv_bytes = 1 << 20;
  o.context = 8000;
  test::FakeEngine f(test::FakeBackend::full(), o);
  f.engine->calibrate();
  EXPECT_EQ(f.engine->kv().blocks().used_bytes(), 0u);
  for (uint64_t i = 0; i < 8; ++i) f.engine->add(test::fake_request(4, i, 1000));
  for (int i = 0; i < 5; ++i) f.step();
  const uint64_t alone = f.step().figures.nanoseconds;
  const uint64_t large = f.engine->add(test::fake_request(4096, 20, 2));
  f.step();
  const uint64_t small = f.engine->add(test::fake_request(64, 21, 2));
  size_t until_small = 0, until_large = 0, steps = 0;
  while (until_large == 0) {
    const StepReport r = f.step();
    ++steps;
    EXPECT_EQ(r.figures.decode_rows >= 8, true);
    EXPECT_LE(r.figures.nanoseconds, static_cast<uint64_t>(3.5 * static_cast<double>(alone)));
    if (until_small == 0 && !f.of(small).tokens.empty()) until_small = steps;
    if (!f.of(large).tokens.empty()) until_large = steps;
  }
  EXPECT_LT(until_small, 10u);
  EXPECT_GT(until_large, 50u);
  f.engine->cancel(large);
}

}  // namespace
}  // namespace moebius::step_cost_test
