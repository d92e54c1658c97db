// SPDX-License-Identifier: Apache-2.0
#include "text/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "moebius/error.h"

namespace moebius {
namespace {

const std::vector<float> kLogits = {1.0f, 3.0f, 2.0f, 3.0f, -1.0f};

std::map<int32_t, int> histogram(const SamplingParams& params, const std::vector<float>& logits,
                                 int draws) {
  Sampler sampler(params);
  std::map<int32_t, int> counts;
  for (int i = 0; i < draws; ++i) ++counts[sampler.next(logits, logits.size()).token];
  return counts;
}

// The published first outputs for seed 1234567.
TEST(SplitMix64, KnownOutputs) {
  SplitMix64 random(1234567);
  for (const uint64_t want : {6457827717110365317u, 3203168211198807973u, 9817491932198370423u})
    EXPECT_EQ(random.next(), want);
}

TEST(Sampler, GreedyTakesTheLowerIdOfATie) {
  Sampler sampler({});
  EXPECT_EQ(sampler.next(kLogits, kLogits.size()).token, 1);
}

TEST(Sampler, NeverChoosesBeyondTheLimit) {
  SamplingParams p;
  p.temperature = 5;
  Sampler sampler(p);
  for (int i = 0; i < 200; ++i) EXPECT_LT(sampler.next(kLogits, 2).token, 2);
}

TEST(Sampler, SameSeedSameSequence) {
  SamplingParams p;
  p.temperature = 1;
  p.seed = 42;
  Sampler a(p), b(p);
  p.seed = 43;
  Sampler c(p);
  int different = 0;
  for (int i = 0; i < 100; ++i) {
    const int32_t t = a.next(kLogits, 5).token;
    EXPECT_EQ(t, b.next(kLogits, 5).token);
    different += t != c.next(kLogits, 5).token;
  }
  EXPECT_GT(different, 10);
}

TEST(Sampler, FrequenciesFollowTheSoftmax) {
  SamplingParams p;
  p.temperature = 2;
  const auto counts = histogram(p, kLogits, 20000);
  double sum = 0;
  for (const float v : kLogits) sum += std::exp(v / 2);
  for (size_t i = 0; i < kLogits.size(); ++i)
    EXPECT_NEAR(counts.at(static_cast<int32_t>(i)) / 20000.0, std::exp(kLogits[i] / 2) / sum, 0.015)
        << i;
}

TEST(Sampler, TopKTopPMinPCutTheTail) {
  SamplingParams k;
  k.temperature = 1, k.top_k = 2;
  for (const auto& [t, n] : histogram(k, kLogits, 500)) EXPECT_TRUE(t == 1 || t == 3);
  SamplingParams p;
  p.temperature = 1, p.top_p = 0.85f;  // probabilities .40 .40 .15 .05 .01: three tokens reach 0.85
  const auto counts = histogram(p, kLogits, 3000);
  EXPECT_EQ(counts.size(), 3u);
  EXPECT_EQ(counts.count(0), 0u);
  SamplingParams m;
  m.temperature = 1, m.min_p = 0.3f;  // token 2 has exp(-1) = 0.37 of the best
  EXPECT_EQ(histogram(m, kLogits, 3000).size(), 3u);
}

TEST(Sampler, PenaltiesMoveTheChoice) {
  SamplingParams p;
  p.repetition_penalty = 2;
  Sampler repeated(p);
  const int32_t prompt[] = {1, 3};
  repeated.see_prompt(prompt);
  EXPECT_EQ(repeated.next(kLogits, 5).token, 2);  // 3/2 < 2
  SamplingParams f;
  f.frequency_penalty = 1.5f;
  Sampler frequent(f);
  EXPECT_EQ(frequent.next(kLogits, 5).token, 1);
  EXPECT_EQ(frequent.next(kLogits, 5).token, 3);
  EXPECT_EQ(frequent.next(kLogits, 5).token, 2);
}

TEST(Sampler, LogprobsAreOfTheUnmodifiedDistribution) {
  SamplingParams p;
  p.logprobs = 3;
  p.repetition_penalty = 5;
  Sampler sampler(p);
  const int32_t prompt[] = {1};
  sampler.see_prompt(prompt);
  const TokenChoice c = sampler.next(kLogits, 5);
  EXPECT_EQ(c.token, 3);
  double sum = 0;
  for (const float v : kLogits) sum += std::exp(v);
  EXPECT_NEAR(c.logprob, 3 - std::log(sum), 1e-5);
  ASSERT_EQ(c.alternatives.size(), 3u);
  EXPECT_EQ(c.alternatives[0].first, 1);
  EXPECT_EQ(c.alternatives[1].first, 3);
  EXPECT_EQ(c.alternatives[2].first, 2);
}

TEST(Sampler, BrokenLogitsAndParametersAreErrors) {
  Sampler sampler({});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THROW(sampler.next(std::vector<float>(4, nan), 4), Error);
  EXPECT_EQ(sampler.next(std::vector<float>{nan, 1, 2}, 3).token, 2);
  SamplingParams p;
  p.top_p = 2;
  EXPECT_THROW(Sampler{p}, Error);
  p = {};
  p.temperature = nan;
  EXPECT_THROW(Sampler{p}, Error);
}

}  // namespace
}  // namespace moebius
