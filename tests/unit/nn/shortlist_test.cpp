// SPDX-License-Identifier: Apache-2.0
// Draws from the few logits that a shortlist computes are those from the whole row, whatever the weights:
// equal rows, huge ones, NaN, heavy tails.
#include "nn/shortlist.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/random.h"
#include "base/token_mask.h"
#include "kernels/oracle.h"
#include "kernels/packed_matrix.h"
#include "kernels/row_functions.h"
#include "nn/sampler.h"
#include "unit/test_util.h"

namespace moebius::shortlist_test {
namespace {

constexpr size_t kOutputs = 3000, kInputs = 96;

// Draws a number with heavy tails.
float number(SplitMix64& random, double tails) {
  const double u = random.uniform() + random.uniform() + random.uniform() - 1.5;
  return static_cast<float>(u * std::exp(tails * 4 * (random.uniform() - 0.5)));
}

std::unique_ptr<LinearLayer> layer_of(const std::vector<float>& weights, CodeType code,
                                      ThreadPool& pool) {
  const XType type = code == CodeType::kBf16 ? XType::kBf16 : XType::kF16;
  std::vector<uint16_t> codes(weights.size());
  row_functions().store(type, weights.data(), codes.data(), codes.size());
  QuantMatrix w;
  w.N = w.block_n = kOutputs;
  w.K = w.block_k = kInputs;
  w.code = code;
  w.bits = 16;
  w.codes = reinterpret_cast<const uint8_t*>(codes.data());
  w.row_bytes = 2 * kInputs;
  LinearPart part;
  part.name = "head";
  part.plan.problem = make_problem(w, ActSpec{}, type);
  part.plan.kernel = choose_kernel(part.plan.problem, host_cpu(), {}).chosen;
  part.w = &w;
  std::vector<LinearPart> parts;
  parts.push_back(std::move(part));
  return std::make_unique<LinearLayer>(std::move(parts), &pool);
}

std::vector<float> adversarial_weights(double tails) {
  SplitMix64 random(7);
  std::vector<float> w(kOutputs * kInputs);
  for (float& v : w) v = number(random, tails);
  const auto row = [&](size_t n) { return w.data() + n * kInputs; };
  for (size_t n = 100; n < 160; ++n) std::memcpy(row(n), row(99), kInputs * sizeof(float));
  for (size_t k = 0; k < kInputs; ++k) {
    row(200)[k] *= 1e4f;                     // one huge row
    row(300)[k] = row(299)[k] * 1.0078125f;  // almost equal rows
    row(301)[k] = -row(299)[k];
    row(400)[k] = 0.0f;
  }
  row(500)[3] = std::numeric_limits<float>::quiet_NaN();
  row(501)[4] = std::numeric_limits<float>::infinity();
  row(502)[5] = 3e4f;  // one weight far above the others
  return w;
}

SamplingParams params_of(size_t i) {
  SamplingParams p;
  p.seed = i;
  p.temperature = i % 3 == 0 ? 0.0f : 0.8f;
  p.top_k = i % 3 == 0 ? 0 : i % 3 == 1 ? 32 : 5;
  if (i % 4 == 1) p.top_p = 0.7f;
  if (i % 5 == 2) p.repetition_penalty = 1.3f, p.presence_penalty = 0.5f;
  if (i % 7 == 3) p.logit_bias = {{200, -100.0f}, {17, 50.0f}, {2999, 3.0f}};
  if (i % 11 == 4) p.bad_words = {{200}, {99}};
  if (i % 13 == 5) p.allowed_tokens = {1, 99, 100, 200, 500, 2999};
  return p;
}

TEST(Shortlist, TenThousandRowsDrawAsFromWholeRows) {
  ThreadPool pool(2);
  const size_t calls = 2500 / test::thinning(), rows = 4;
  TokenMask mask;
  mask.listed = false;
  mask.bits.assign((kOutputs + 63) / 64, 0);
  for (size_t i = 0; i < kOutputs; ++i)
    if (i % 3 != 1) mask.bits[i / 64] |= uint64_t{1} << (i % 64), ++mask.count;
  for (const double tails : {0.0, 1.0}) {
    const auto layer =
        layer_of(adversarial_weights(tails), tails == 0 ? CodeType::kBf16 : CodeType::kF16, pool);
    ASSERT_TRUE(Shortlist::possible(*layer));
    Shortlist list(*layer, pool, host_cpu());
    SplitMix64 random(11);
    std::vector<float> x(rows * kInputs), whole(rows * kOutputs), few(rows * kOutputs);
    const auto xs = f32_rows(std::as_const(x).data(), rows, kInputs);
    size_t listed = 0, skipped = 0;
    for (size_t c = 0; c < calls; ++c) {
      for (float& v : x) v = number(random, c % 2 == 0 ? 0 : 0.5);
      row_functions().round(layer->slot().problem().x_type, x.data(), x.size());
      if (c % 100 == 99) x[5] = std::numeric_limits<float>::infinity();
      if (c % 100 == 50) std::fill_n(x.data(), kInputs, 0.0f);
      std::vector<Sampler> samplers;
      std::vector<ListTokens> lists;
      std::vector<const ListTokens*> wanted;
      const TokenMask* masked = c % 6 == 5 ? &mask : nullptr;
      for (size_t m = 0; m < rows; ++m) {
        samplers.emplace_back(params_of(c * rows + m));
        samplers[m].see_prompt(std::vector<int32_t>{99, 200, 299});
        ASSERT_TRUE(samplers[m].reads_few());
        lists.push_back([&samplers, m, masked](const LogitBounds& b, std::vector<int32_t>& ids) {
          return samplers[m].list_few(b, kOutputs, masked, ids);
        });
      }
      for (const ListTokens& l : lists) wanted.push_back(&l);
      if (!list.forward(xs, f32_rows(few.data(), rows, kOutputs), pool, wanted)) {
        ++skipped;
        continue;
      }
      layer->forward(xs, f32_rows(whole.data(), rows, kOutputs), pool);
      for (size_t i = 0; i < few.size(); ++i) {
        if (few[i] == -std::numeric_limits<float>::infinity()) continue;
        ASSERT_EQ(std::memcmp(&few[i], &whole[i], sizeof(float)), 0) << i;
        ++listed;
      }
      for (size_t m = 0; m < rows; ++m) {
        Sampler other = samplers[m];
        const size_t at = m * kOutputs;
        ASSERT_EQ(samplers[m].next(std::span(few).subspan(at, kOutputs), kOutputs, masked).token,
                  other.next(std::span(whole).subspan(at, kOutputs), kOutputs, masked).token)
            << "call " << c << " row " << m;
      }
    }
    EXPECT_LT(skipped, calls / 2) << tails;
    EXPECT_LT(listed, (calls - skipped) * rows * kOutputs / 2) << tails;
  }
}

TEST(Shortlist, OnlyFewGreatestLogits) {
  SamplingParams p;
  EXPECT_TRUE(Sampler(p).reads_few());
  p.logprobs = 0;
  EXPECT_FALSE(Sampler(p).reads_few());
  p.logprobs = -1, p.temperature = 1;
  EXPECT_FALSE(Sampler(p).reads_few());
  p.top_k = 32;
  EXPECT_TRUE(Sampler(p).reads_few());
  p.top_k = 33;
  EXPECT_FALSE(Sampler(p).reads_few());
  p.top_k = 3, p.top_n_sigma = 1;
  EXPECT_FALSE(Sampler(p).reads_few());
}

}  // namespace
}  // namespace moebius::shortlist_test
