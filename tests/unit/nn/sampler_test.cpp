// SPDX-License-Identifier: Apache-2.0
#include "nn/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "base/math_functions.h"
#include "base/token_mask.h"
#include "device/cuda/device_candidates.h"
#include "moebius/error.h"
#include "nn/logit_row.h"

namespace moebius::sampler_test {
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

// ---- the definition of docs/numerics.md, "Sampling", in plain words: sorts, copies, one token after
// the other ----

struct Definition {
  SamplingParams params;
  std::vector<int32_t> stop_tokens;
  std::set<int32_t> prompt;
  std::map<int32_t, int> answer;
  std::vector<int32_t> tokens;  // of the answer
  int produced = 0;
  SplitMix64 random;
  explicit Definition(const SamplingParams& p = {}) : params(p), random(p.seed) {}

  bool forbidden(int32_t id) const {
    const auto& allowed = params.allowed_tokens;
    if (!allowed.empty() && std::count(allowed.begin(), allowed.end(), id) == 0) return true;
    std::vector<int32_t> text = tokens;
    text.push_back(id);
    return std::any_of(params.bad_words.begin(), params.bad_words.end(), [&](const auto& word) {
      return word.size() <= text.size() && std::equal(word.rbegin(), word.rend(), text.rbegin());
    });
  }
  std::vector<float> logits_of(const std::vector<float>& raw) const {
    std::vector<float> v = raw;
    for (size_t i = 0; i < v.size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      const bool stop = std::count(stop_tokens.begin(), stop_tokens.end(), id) > 0;
      if (!std::isfinite(v[i]) || (stop && produced < params.min_tokens) || forbidden(id)) {
        v[i] = kNever;
        continue;
      }
      float bias = 0;
      for (const TokenBias& b : params.logit_bias) bias += b.token == id ? b.bias : 0.0f;
      v[i] += bias;
      const float r = params.repetition_penalty;
      const int n = answer.count(id) > 0 ? answer.at(id) : 0;
      if (prompt.count(id) > 0 || n > 0) v[i] = v[i] > 0 ? v[i] / r : v[i] * r;
      if (n > 0) v[i] -= params.presence_penalty + params.frequency_penalty * static_cast<float>(n);
      v[i] =
          std::clamp(v[i], -std::numeric_limits<float>::max(), std::numeric_limits<float>::max());
    }
    return v;
  }
  static std::vector<size_t> ranks(const std::vector<float>& v) {  // finite logits, best first
    std::vector<size_t> order;
    for (size_t i = 0; i < v.size(); ++i)
      if (std::isfinite(v[i])) order.push_back(i);
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return v[a] > v[b]; });
    return order;
  }
  static float grid_of(size_t size) {
    float grid = 0x1p-11f;
    for (size_t n = size_t{1} << 19; n < size; n *= 2) grid *= 2;
    return grid;
  }
  double least_of_sigma(const std::vector<float>& v, float top) const {
    std::vector<double> below;  // of finite logits, in ascending order of ids
    for (const float x : v)
      if (std::isfinite(x)) below.push_back(static_cast<double>(x) - static_cast<double>(top));
    double sum = 0, squares = 0;
    for (const double d : below) sum += d;
    const auto n = static_cast<double>(below.size());
    for (const double d : below) squares += (d - sum / n) * (d - sum / n);
    return static_cast<double>(top) -
           static_cast<double>(params.top_n_sigma) * std::sqrt(squares / n);
  }
  int32_t draw(const std::vector<float>& v) {
    const double u = random.uniform();
    std::vector<size_t> order = ranks(v);
    const float top = v[order[0]];
    const auto rate = static_cast<float>(
        std::min(1.4426950408889634 / static_cast<double>(params.temperature), 3e38));
    const auto weight = [&](size_t i) {
      return static_cast<double>(token_weight_f32(v[i], top, rate, grid_of(v.size())));
    };
    if (params.top_n_sigma > 0) {
      const double least = least_of_sigma(v, top);
      order.erase(std::remove_if(order.begin(), order.end(),
                                 [&](size_t i) { return static_cast<double>(v[i]) < least; }),
                  order.end());
    }
    if (params.top_k > 0 && static_cast<size_t>(params.top_k) < order.size())
      order.resize(static_cast<size_t>(params.top_k));
    if (params.top_p < 1.0f) {
      double total = 0, sum = 0;
      for (const size_t i : order) total += weight(i);
      size_t n = 0;
      do sum += weight(order[n++]);
      while (n < order.size() && sum < static_cast<double>(params.top_p) * total);
      order.resize(n);
    }
    if (params.min_p > 0.0f) {
      const double least = natural_log(static_cast<double>(params.min_p)) * 1.4426950408889634;
      order.erase(std::remove_if(
                      order.begin(), order.end(),
                      [&](size_t i) { return static_cast<double>((v[i] - top) * rate) < least; }),
                  order.end());
    }
    std::sort(order.begin(), order.end());
    double total = 0, sum = 0;
    for (const size_t i : order) total += weight(i);
    for (const size_t i : order)
      if ((sum += weight(i)) > u * total) return static_cast<int32_t>(i);
    return -1;
  }
  void logprobs(const std::vector<float>& raw, size_t alternatives, TokenChoice& choice) const {
    const std::vector<size_t> order = ranks(raw);
    const float top = raw[order[0]];
    double sum = 0;
    for (const size_t i : order)
      sum += static_cast<double>(token_weight_f32(raw[i], top, 1.44269504f, grid_of(raw.size())));
    const double norm = static_cast<double>(top) + natural_log(sum);
    const auto of = [&](size_t i) {
      return std::isfinite(raw[i]) ? static_cast<float>(static_cast<double>(raw[i]) - norm)
                                   : kNever;
    };
    choice.logprob = of(static_cast<size_t>(choice.token));
    for (size_t n = 0; n < std::min(alternatives, order.size()); ++n)
      choice.alternatives.emplace_back(static_cast<int32_t>(order[n]), of(order[n]));
  }
  TokenChoice next(const std::vector<float>& raw) {
    const std::vector<float> v = logits_of(raw);
    TokenChoice choice;
    choice.token = params.temperature == 0.0f ? static_cast<int32_t>(ranks(v)[0]) : draw(v);
    if (params.logprobs >= 0) logprobs(raw, static_cast<size_t>(params.logprobs), choice);
    ++answer[choice.token], ++produced;
    tokens.push_back(choice.token);
    return choice;
  }
};

class Numbers {  // what random rows and parameters are made of
 public:
  explicit Numbers(uint64_t seed) : random_(seed) {}
  size_t below(size_t n) { return random_.below(n); }
  float normal() {
    float sum = -6;
    for (int i = 0; i < 12; ++i) sum += static_cast<float>(random_.uniform());
    return sum;
  }
  template <class T>
  T one_of(std::initializer_list<T> list) {
    return list.begin()[below(list.size())];
  }
  // One of several kinds: normal at several widths, many ties, special values, all equal.
  std::vector<float> row(size_t size) {
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const float width = one_of({0.0f, 0.01f, 1.0f, 3.0f, 10.0f, 1000.0f, 1e30f, 1e-30f});
    const bool ties = below(3) == 0, ugly = below(3) == 0;
    std::vector<float> v(size);
    for (float& x : v) {
      x = normal() * width;
      if (ties) x = std::round(x);
      if (ugly && below(4) == 0)
        x = one_of({kInfinity, -kInfinity, std::numeric_limits<float>::quiet_NaN(), 0.0f, -0.0f,
                    3.4e38f, -3.4e38f, 1e-45f});
    }
    if (std::none_of(v.begin(), v.end(), [](float x) { return std::isfinite(x); })) v[0] = 1;
    return v;
  }
  SamplingParams params(size_t size) {
    SamplingParams p;
    p.temperature = one_of({0.0f, 0.01f, 0.7f, 1.0f, 1.0f, 2.0f, 100.0f, 1e-40f});
    p.top_k = one_of({0, 0, 0, 1, 2, 20, 300, static_cast<int>(size), 1 << 30});
    p.top_p = one_of({1.0f, 1.0f, 0.0f, 0.5f, 0.8f, 0.95f, 0.9999f});
    p.min_p = one_of({0.0f, 0.0f, 0.05f, 0.5f, 1.0f, 1e-7f});
    p.repetition_penalty = one_of({1.0f, 1.0f, 1.2f, 0.5f});
    p.presence_penalty = one_of({0.0f, 0.0f, 1.0f, -0.5f});
    p.frequency_penalty = one_of({0.0f, 0.0f, 0.3f});
    p.logprobs = one_of({-1, -1, 0, 1, 20, 1000});
    p.seed = random_.next();
    if (below(3) == 0)
      for (size_t i = 0; i < 3; ++i)
        p.logit_bias.push_back({static_cast<int32_t>(below(size)), normal() * 10});
    const auto token = [&] { return static_cast<int32_t>(below(size)); };
    if (below(4) == 0)
      for (size_t n = one_of<size_t>({1, 2, 10, 300}); n > 0; --n)
        p.allowed_tokens.push_back(token());
    // Of few tokens, so that an answer begins them now and then.
    const auto few = [&] {
      return p.allowed_tokens.empty() ? static_cast<int32_t>(below(std::min<size_t>(size, 3)))
                                      : p.allowed_tokens[below(p.allowed_tokens.size())];
    };
    if (below(4) == 0)
      for (size_t n = 1 + below(8); n > 0; --n) {
        p.bad_words.emplace_back();
        for (size_t k = 1 + below(3); k > 0; --k) p.bad_words.back().push_back(few());
      }
    p.top_n_sigma = one_of({0.0f, 0.0f, 0.0f, -1.0f, 0.5f, 1.0f, 3.0f, 100.0f});
    return p;
  }

 private:
  SplitMix64 random_;
};

void expect_equal(const TokenChoice& got, const TokenChoice& want) {
  ASSERT_EQ(got.token, want.token);
  ASSERT_EQ(std::memcmp(&got.logprob, &want.logprob, sizeof(float)), 0)
      << got.logprob << " " << want.logprob;
  ASSERT_EQ(got.alternatives, want.alternatives);
}

// Of the logits 0, 1, 3, 8 (mean 3, deviation sqrt(38 / 4) = 3.08) one deviation keeps what is at least
// 4.92, two what is at least 1.84, and a token that is not finite or banned counts in neither.
TEST(Sampler, SigmasKeepWhatIsNearTheGreatestLogit) {
  const float infinity = std::numeric_limits<float>::infinity();
  const auto drawn = [&](float sigmas, std::vector<float> row, std::vector<int32_t> allowed = {}) {
    std::set<int32_t> tokens;
    SamplingParams p;
    p.temperature = 50;
    p.top_n_sigma = sigmas;
    p.allowed_tokens = std::move(allowed);
    for (p.seed = 0; p.seed < 200; ++p.seed) tokens.insert(Sampler(p).next(row, row.size()).token);
    return tokens;
  };
  using Tokens = std::set<int32_t>;
  EXPECT_EQ(drawn(1, {0, 1, 3, 8}), Tokens({3}));
  EXPECT_EQ(drawn(2, {0, 1, 3, 8}), Tokens({2, 3}));
  EXPECT_EQ(drawn(2.5f, {0, 1, 3, 8}), Tokens({1, 2, 3}));
  EXPECT_EQ(drawn(3, {0, 1, 3, 8}), Tokens({0, 1, 2, 3}));
  EXPECT_EQ(drawn(0, {0, 1, 3, 8}), Tokens({0, 1, 2, 3}));
  EXPECT_EQ(drawn(-2, {0, 1, 3, 8}), Tokens({0, 1, 2, 3}));
  EXPECT_EQ(drawn(2, {-infinity, 0, 1, 3, 8}), Tokens({3, 4}));
  EXPECT_EQ(drawn(2, {-90, 0, 1, 3, 8}, {1, 2, 3, 4}), Tokens({3, 4}));
  EXPECT_EQ(drawn(1, {5, 5, 5}), Tokens({0, 1, 2}));
  SamplingParams wrong;
  wrong.top_n_sigma = 101;
  EXPECT_THROW(check(wrong), Error);
}

TEST(Sampler, EqualsTheDefinition) {
  Numbers numbers(20261);
  for (int round = 0; round < 1500; ++round) {
    const size_t size = numbers.one_of<size_t>({1, 2, 3, 7, 100, 255, 256, 257, 1000, 5000});
    const SamplingParams params = numbers.params(size);
    Definition definition(params);
    std::vector<int32_t> prompt;
    for (size_t i = 0; i < 5; ++i) prompt.push_back(static_cast<int32_t>(numbers.below(size)));
    definition.prompt = {prompt.begin(), prompt.end()};
    Sampler sampler(params);
    sampler.see_prompt(prompt);
    SCOPED_TRACE(testing::Message() << "round " << round << ", " << size << " tokens, temperature "
                                    << params.temperature << ", k " << params.top_k << ", p "
                                    << params.top_p << ", min_p " << params.min_p << ", sigmas "
                                    << params.top_n_sigma << ", bias " << params.logit_bias.size());
    for (int step = 0; step < 4; ++step) {
      const std::vector<float> row = numbers.row(size);
      if (Definition::ranks(definition.logits_of(row)).empty()) {
        ASSERT_THROW(sampler.next(row, size), Error);
        break;
      }
      ASSERT_NO_FATAL_FAILURE(expect_equal(sampler.next(row, size), definition.next(row)));
    }
  }
}

TEST(Sampler, EqualsTheDefinitionOnLargeVocabularies) {
  Numbers numbers(7);
  for (const size_t size : {151936u, 600000u})  // the second has a coarser grid
    for (int round = 0; round < 6; ++round) {
      const SamplingParams params = numbers.params(size);
      Definition definition(params);
      Sampler sampler(params);
      std::vector<float> row = numbers.row(size);
      for (size_t i = 0; i < 5; ++i) row[numbers.below(size)] = 2.5f * static_cast<float>(i);
      ASSERT_NO_FATAL_FAILURE(expect_equal(sampler.next(row, size), definition.next(row)))
          << size << " " << round;
    }
}

// What a device finds of a row is enough: the same tokens, also with ties, with numbers that are not finite, and with
// draws that need most of a row.
TEST(Sampler, CandidatesGiveTheChoicesOfTheirRows) {
  Numbers numbers(20262);
  size_t asked = 0, few = 0;
  for (int round = 0; round < 1500; ++round) {
    const size_t size = numbers.one_of<size_t>({1, 2, 3, 7, 100, 255, 256, 257, 1000, 5000});
    SamplingParams params = numbers.params(size);
    params.logprobs = -1, params.repetition_penalty = 1.0f;
    params.presence_penalty = params.frequency_penalty = 0.0f;
    params.logit_bias.clear(), params.allowed_tokens.clear(), params.bad_words.clear();
    if (round % 4 == 0)
      params.temperature = 0.7f, params.top_k = 9, params.top_p = 0.8f, params.min_p = 0.1f;
    Sampler by_row(params), by_candidates(params);
    SCOPED_TRACE(testing::Message() << "round " << round << ", " << size << " tokens, temperature "
                                    << params.temperature << ", k " << params.top_k << ", p "
                                    << params.top_p << ", min_p " << params.min_p);
    const std::optional<CandidateNeed> need = by_candidates.need(size);
    const bool all = params.temperature > 0 &&
                     (params.top_n_sigma > 0 ||
                      (params.top_p >= 1 && params.min_p <= 0 &&
                       (params.top_k == 0 || static_cast<size_t>(params.top_k) >= size)));
    ASSERT_EQ(need.has_value(), !all);
    if (!need) continue;
    ++asked;
    for (int step = 0; step < 4; ++step) {
      const std::vector<float> row = numbers.row(size);
      Candidates found;
      found.ids.resize(size), found.logits.resize(size);
      const CudaFound facts =
          find_candidates(row.data(), *need, size, found.ids.data(), found.logits.data());
      found.top = facts.top, found.total = facts.total;
      found.ids.resize(facts.count), found.logits.resize(facts.count);
      few += facts.count < size ? 1 : 0;
      if (!std::isfinite(facts.top)) {
        ASSERT_THROW(by_row.next(row, size), Error);
        ASSERT_THROW(by_candidates.next(found, size), Error);
        break;
      }
      ASSERT_EQ(by_candidates.next(found, size).token, by_row.next(row, size).token);
    }
  }
  EXPECT_GT(asked, 500u);
  EXPECT_GT(few, 500u);
}

TEST(Sampler, WhatNeedsAllLogitsAsksForNoCandidates) {
  const auto asks = [](auto change) {
    SamplingParams p;
    change(p);
    const int32_t stops[] = {3};
    return Sampler(p, stops).need(1000).has_value();
  };
  EXPECT_TRUE(asks([](SamplingParams&) {}));
  EXPECT_TRUE(asks([](SamplingParams& p) { p.temperature = 1, p.top_k = 20; }));
  EXPECT_TRUE(asks([](SamplingParams& p) { p.temperature = 1, p.top_p = 0.9f; }));
  EXPECT_FALSE(asks([](SamplingParams& p) { p.temperature = 1; }));
  EXPECT_FALSE(asks([](SamplingParams& p) { p.logprobs = 0; }));
  EXPECT_FALSE(asks([](SamplingParams& p) { p.min_tokens = 2; }));
  EXPECT_FALSE(asks([](SamplingParams& p) { p.allowed_tokens = {1, 2}; }));
  EXPECT_FALSE(asks([](SamplingParams& p) { p.logit_bias = {{5, 1.0f}}; }));
  EXPECT_FALSE(asks([](SamplingParams& p) { p.bad_words = {{1, 2}}; }));
  SamplingParams p;
  p.presence_penalty = 1.0f;
  Sampler sampler(p);
  EXPECT_TRUE(sampler.need(3).has_value());  // nothing was produced
  sampler.next(std::vector<float>{1.0f, 2.0f, 0.0f}, 3);
  EXPECT_FALSE(sampler.need(3).has_value());
}

TEST(Sampler, DoesNotDependOnAlignmentOrThread) {
  Numbers numbers(6);
  const std::vector<float> row = numbers.row(10000);
  std::vector<float> memory(row.size() + 16);
  for (int round = 0; round < 30; ++round) {
    const SamplingParams params = numbers.params(row.size());
    Sampler first(params), second = first;
    const TokenChoice want = first.next(row, row.size());
    for (size_t shift = 0; shift < 16; shift += 5) {
      std::copy(row.begin(), row.end(), memory.begin() + static_cast<std::ptrdiff_t>(shift));
      Sampler copy = second;
      TokenChoice got;
      std::thread([&] { got = copy.next({memory.data() + shift, row.size()}, row.size()); }).join();
      ASSERT_NO_FATAL_FAILURE(expect_equal(got, want));
    }
  }
}

// Chi-square of `draws` against exact probabilities of the kept tokens; 1e-6 of right samplers
// would be further off (mean + 6 sigma of the distribution, seeds are fixed).
void expect_distribution(const SamplingParams& params, const std::vector<float>& logits,
                         const std::set<int32_t>& kept) {
  constexpr int kDraws = 40000;
  const auto counts = histogram(params, logits, kDraws);
  double total = 0, square = 0;
  const auto weight = [&](int32_t t) {
    return std::exp(static_cast<double>(logits[static_cast<size_t>(t)]) /
                    static_cast<double>(params.temperature));
  };
  for (const int32_t t : kept) total += weight(t);
  for (const auto& [t, n] : counts) EXPECT_EQ(kept.count(t), 1u) << t;
  for (const int32_t t : kept) {
    const double want = kDraws * weight(t) / total;
    const double got = counts.count(t) > 0 ? counts.at(t) : 0;
    square += (got - want) * (got - want) / want;
  }
  const auto freedom = static_cast<double>(kept.size() - 1);
  EXPECT_LT(square, freedom + 6 * std::sqrt(2 * freedom) + 10);
}

TEST(Sampler, DrawsFollowTheProbabilities) {
  std::vector<float> logits;
  for (int i = 0; i < 12; ++i) logits.push_back(static_cast<float>((i * 7) % 12) * 0.35f);
  std::vector<size_t> order = Definition::ranks(logits);
  const auto best = [&](size_t n) {
    return std::set<int32_t>(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(n));
  };
  SamplingParams p;
  p.temperature = 0.8f, p.seed = 11;
  expect_distribution(p, logits, best(12));
  p.top_k = 5;
  expect_distribution(p, logits, best(5));
  p.top_k = 0, p.top_p = 0.7f;
  double total = 0, sum = 0;
  size_t n = 0;
  for (const float v : logits) total += std::exp(static_cast<double>(v / 0.8f));
  while (sum < 0.7 * total) sum += std::exp(static_cast<double>(logits[order[n++]] / 0.8f));
  expect_distribution(p, logits, best(n));
  p.top_p = 1, p.min_p = 0.2f;  // exp(-0.35 j / 0.8) >= 0.2: j <= 3
  expect_distribution(p, logits, best(4));
}

TEST(Sampler, LogprobsAreThoseOfTheSoftmax) {
  Numbers numbers(3);
  for (const float width : {0.1f, 1.0f, 4.0f, 20.0f}) {
    std::vector<float> row(151936);
    for (float& v : row) v = numbers.normal() * width;
    long double sum = 0;
    for (const float v : row) sum += std::exp(static_cast<long double>(v));
    const auto token = static_cast<int32_t>(numbers.below(row.size()));
    const TokenChoice c = token_logprobs(row, row.size(), token, 5);
    const auto want = static_cast<long double>(row[static_cast<size_t>(token)]) - std::log(sum);
    EXPECT_NEAR(static_cast<double>(c.logprob), static_cast<double>(want),
                1e-6 + 3e-7 * std::abs(static_cast<double>(want)));
    TokenChoice same;
    same.token = token;
    Definition().logprobs(row, 5, same);
    expect_equal(c, same);
  }
  for (double x = 1e-300; x < 1e300; x *= 1.7)
    EXPECT_NEAR(natural_log(x), std::log(x), 4e-16 * std::abs(std::log(x)) + 2e-16) << x;
}

TEST(Sampler, LogprobsOfKnownTokens) {
  const float inf = std::numeric_limits<float>::infinity();
  const std::vector<float> row = {1, inf, 2, -inf};
  EXPECT_EQ(token_logprobs(row, 4, 3, 0).logprob, -inf);
  EXPECT_EQ(token_logprobs(row, 4, 1, 0).logprob, -inf);
  const TokenChoice c = token_logprobs(row, 4, 0, 10);
  ASSERT_EQ(c.alternatives.size(), 2u);  // those that are finite
  EXPECT_EQ(c.alternatives[0].first, 2);
  EXPECT_EQ(c.alternatives[1].second, c.logprob);
  EXPECT_EQ(c.rank, 2u);
  EXPECT_EQ(token_logprobs(row, 4, 2, 0).rank, 1u);
  EXPECT_EQ(token_logprobs(row, 4, 3, 0).rank, 3u);
  EXPECT_EQ(token_logprobs(kLogits, 5, 3, 0).rank, 2u);  // behind its equal
  EXPECT_THROW(token_logprobs(row, 3, 3, 0), Error);
  EXPECT_THROW(token_logprobs(row, 4, -1, 0), Error);
  EXPECT_THROW(token_logprobs(row, 4, 0, -1), Error);
  EXPECT_THROW(token_logprobs(std::vector<float>{inf, -inf}, 2, 0, 0), Error);
  EXPECT_THROW(token_logprobs({}, 0, 0, 0), Error);
}

TEST(Sampler, BiasMovesTheChoice) {
  SamplingParams p;
  p.logit_bias = {{1, -100}, {3, -100}, {4, 3.5f}};
  EXPECT_EQ(Sampler(p).next(kLogits, 5).token, 4);  // -1 + 3.5 > 2
  p.logit_bias = {{5, 1}};
  EXPECT_THROW(check(p, 5), Error);
  EXPECT_NO_THROW(check(p, 6));
  EXPECT_THROW(Sampler(p).next(kLogits, 5), Error);
  p.logit_bias = {{0, 101}};
  EXPECT_THROW(check(p), Error);
  p.logit_bias = {{-1, 1}};
  EXPECT_THROW(check(p), Error);
}

TEST(Sampler, OnlyAllowedTokensAreChosen) {
  SamplingParams p;
  p.allowed_tokens = {4, 2, 4, 0};
  p.logprobs = 1;
  const TokenChoice best = Sampler(p).next(kLogits, 5);
  EXPECT_EQ(best.token, 2);
  EXPECT_EQ(best.alternatives[0].first, 1);  // the model's own
  p.temperature = 100;
  for (const auto& [token, count] : histogram(p, kLogits, 300)) {
    EXPECT_TRUE(token == 0 || token == 2 || token == 4) << token;
    EXPECT_GT(count, 50) << token;
  }
  p.allowed_tokens = {5};
  EXPECT_THROW(check(p, 5), Error);
  EXPECT_THROW(Sampler(p).next(kLogits, 5), Error);
  p.allowed_tokens = {-1};
  EXPECT_THROW(check(p), Error);
  p = {};
  p.allowed_tokens = {0};
  p.min_tokens = 1;
  const int32_t stop = 0;
  EXPECT_THROW(Sampler(p, {&stop, 1}).next(kLogits, 5), Error);  // nothing is left
}

// A mask chooses as a list of allowed tokens does, whatever its form; without it every number is the
// same.
TEST(Sampler, AMaskIsAppliedBehindBiasAndPenalties) {
  constexpr size_t kTokens = 3000;
  SplitMix64 random(5);
  std::vector<float> logits(kTokens);
  for (float& v : logits) v = static_cast<float>(6 * random.uniform());
  for (const size_t keep : {size_t{2}, size_t{100}, size_t{2500}}) {
    std::set<int32_t> chosen;
    while (chosen.size() < keep) chosen.insert(static_cast<int32_t>(random.below(kTokens)));
    TokenMask list, bits;
    list.ids.assign(chosen.begin(), chosen.end());
    bits.listed = false;
    bits.bits.assign((kTokens + 63) / 64, 0);
    for (const int32_t t : chosen)
      bits.bits[static_cast<size_t>(t) / 64] |= uint64_t{1} << (t % 64);
    list.count = bits.count = keep;
    for (const float temperature : {0.0f, 1.0f}) {
      SamplingParams p;
      p.temperature = temperature;
      p.top_p = 0.9f, p.presence_penalty = 1, p.repetition_penalty = 1.2f, p.logprobs = 2;
      p.logit_bias = {{*chosen.begin(), 5.0f}, {1, 50.0f}};
      SamplingParams allowed = p;
      allowed.allowed_tokens = list.ids;
      Sampler a(allowed), b(p), c(p);
      for (int i = 0; i < 50; ++i) {
        const TokenChoice want = a.next(logits, kTokens);
        for (const TokenChoice& got :
             {b.next(logits, kTokens, &list), c.next(logits, kTokens, &bits)}) {
          EXPECT_EQ(got.token, want.token);
          EXPECT_EQ(got.logprob, want.logprob);  // of the unmodified distribution
          EXPECT_EQ(got.alternatives, want.alternatives);
        }
      }
    }
  }
}

TEST(Sampler, OneTokenNeedsNoRandomNumber) {
  SamplingParams p;
  p.temperature = 1, p.seed = 9;
  TokenMask one;
  one.ids = {4};
  one.count = 1;
  Sampler forced(p), plain(p);
  for (int i = 0; i < 20; ++i) {
    EXPECT_EQ(forced.next(kLogits, 5, &one).token, 4);
    EXPECT_EQ(forced.next(kLogits, 5).token, plain.next(kLogits, 5).token);
  }
  one.ids.clear();
  EXPECT_THROW(forced.next(kLogits, 5, &one), Error);
}

TEST(Sampler, BadWordsAreNeverCompleted) {
  SamplingParams p;
  p.bad_words = {{1}, {3, 3, 2}, {3, 3, 3}, {2, 3}};
  Sampler sampler(p);
  const auto next = [](Sampler& s) { return s.next(kLogits, 5).token; };
  EXPECT_EQ(next(sampler), 3);
  EXPECT_EQ(next(sampler), 3);
  Sampler fork = sampler;
  EXPECT_EQ(next(sampler), 0);  // 3 3 3, 3 3 2 and 1 are bad
  EXPECT_EQ(next(sampler), 3);  // the row begins anew
  EXPECT_EQ(next(fork), 0);
  p.bad_words = {{2, 3}, {3}};
  p.allowed_tokens = {2, 3};
  Sampler narrow(p);
  EXPECT_EQ(next(narrow), 2);
  EXPECT_EQ(next(narrow), 2);
  p.bad_words = {{}};
  EXPECT_THROW(check(p), Error);
  p.bad_words = {{5}};
  EXPECT_THROW(check(p, 5), Error);
  EXPECT_THROW(Sampler(p).next(kLogits, 5), Error);
}

TEST(Sampler, StopTokensWaitForTheLeastLength) {
  SamplingParams p;
  p.min_tokens = 2;
  const int32_t stops[] = {1, 3, 99, -5};
  Sampler sampler(p, stops);
  EXPECT_EQ(sampler.next(kLogits, 5).token, 2);
  Sampler fork = sampler;
  EXPECT_EQ(sampler.next(kLogits, 5).token, 2);
  EXPECT_EQ(sampler.next(kLogits, 5).token, 1);
  EXPECT_EQ(fork.next(kLogits, 5).token, 2);
  EXPECT_EQ(fork.next(kLogits, 5).token, 1);
  const int32_t all[] = {0, 1};
  EXPECT_THROW(Sampler(p, all).next(kLogits, 2), Error);
  p.min_tokens = -1;
  EXPECT_THROW(check(p), Error);
}

}  // namespace
}  // namespace moebius::sampler_test
