// SPDX-License-Identifier: Apache-2.0
// Searched scales and GPTQ (quantize/search.h, quantize/gptq.h) on matrices in memory: the factor is
// one of the inverse, and what is meant to lose less loses less.
#include "quantize/gptq.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/numeric.h"
#include "base/random.h"
#include "quantize/search.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::gptq_test {
namespace {

// Rows of inputs that hang together: a few directions, some noise.
std::vector<float> inputs(size_t n, size_t K, SplitMix64& random) {
  std::vector<float> mix(4 * K), x(n * K);
  for (float& v : mix) v = static_cast<float>(random.uniform() * 2 - 1);
  for (size_t r = 0; r < n; ++r) {
    float part[4];
    for (float& p : part) p = static_cast<float>(random.uniform() * 2 - 1);
    for (size_t k = 0; k < K; ++k) {
      x[r * K + k] = 0.2f * static_cast<float>(random.uniform() - 0.5);
      for (size_t i = 0; i < 4; ++i) x[r * K + k] += part[i] * mix[i * K + k];
    }
  }
  return x;
}

std::vector<float> moments_of(const std::vector<float>& x, size_t K) {
  const size_t n = x.size() / K, stride = spread_stride(K);
  std::vector<float> h(K * K, 0.0f), apart(n * stride);
  for (size_t r = 0; r < n; ++r) std::copy_n(x.data() + r * K, K, apart.data() + r * stride);
  add_moments(h, K, apart.data(), n);
  mirror(h, K);
  return h;
}

TEST(Gptq, MomentsAreSumsOfProducts) {
  SplitMix64 random(1);
  const size_t K = 19, n = 7;
  const std::vector<float> x = inputs(n, K, random), h = moments_of(x, K);
  for (size_t i = 0; i < K; ++i)
    for (size_t j = 0; j < K; ++j) {
      double sum = 0;
      for (size_t r = 0; r < n; ++r) sum += static_cast<double>(x[r * K + i]) * x[r * K + j];
      EXPECT_NEAR(h[i * K + j], sum, 1e-5);
    }
}

TEST(Gptq, TheFactorIsThatOfTheInverse) {
  SplitMix64 random(2);
  const size_t K = 40;
  std::vector<float> h = moments_of(inputs(300, K, random), K);
  for (size_t i = 0; i < K; ++i) h[i * K + 7] = h[7 * K + i] = 0;  // an input that is always 0
  for (const bool by_size : {false, true}) {
    HessianFactor f;
    ASSERT_TRUE(factorize(h, K, 0.01f, by_size, f));
    double mean = 0;
    for (size_t i = 0; i < K; ++i) mean += h[i * K + i] / static_cast<double>(K);
    const auto damped = [&](size_t a, size_t b) {
      const size_t i = f.order[a], j = f.order[b];
      double v = h[i * K + j];
      if (i == j) v = (v == 0 ? mean : v) + 0.01 * mean;
      return v;
    };
    // U^T U H = 1
    for (size_t i = 0; i < K; ++i)
      for (size_t j = 0; j < K; ++j) {
        double sum = 0;
        for (size_t k = 0; k < K; ++k) {
          double inverse = 0;
          for (size_t m = 0; m <= std::min(i, k); ++m)
            inverse += static_cast<double>(f.upper[m * K + i]) * f.upper[m * K + k];
          sum += inverse * damped(k, j);
        }
        EXPECT_NEAR(sum, i == j ? 1 : 0, 2e-3) << i << " " << j;
      }
    if (by_size) {
      for (size_t i = 1; i < K; ++i)
        EXPECT_GE(h[f.order[i - 1] * K + f.order[i - 1]], h[f.order[i] * K + f.order[i]]);
    }
  }
}

TEST(Gptq, WhatIsNotPositiveDefiniteIsRefused) {
  HessianFactor f;
  EXPECT_FALSE(factorize(std::vector<float>(9, 0.0f), 3, 0.01f, true, f));
  EXPECT_FALSE(factorize({1, 2, 2, 1}, 2, 0.01f, true, f));
  EXPECT_FALSE(factorize({1, NAN, NAN, 1}, 2, 0.01f, true, f));
}

// A module of one matrix, opened from a folder.
struct OneMatrix {
  OneMatrix(const test::TempDir& dir, size_t N, size_t K, SplitMix64& random) {
    std::vector<uint16_t> w(N * K);
    for (uint16_t& v : w) {
      const double u = random.uniform() - 0.5;
      v = f32_to_bf16(static_cast<float>(u * u * u));
    }
    const TensorData t{"m.weight",
                       DType::kBf16,
                       {N, K},
                       {reinterpret_cast<const uint8_t*>(w.data()), w.size() * 2}};
    const std::string path = (dir / "m.safetensors").string();
    write_safetensors(path, {&t, 1});
    store = TensorStore::open_file(path);
    module.name = "m";
    ModuleTensors tensors;
    tensors.name = "m";
    tensors[Role::kWeight].info = &store.require("m.weight");
    module.plan = reader_for(Format::kDense).plan(tensors, Scheme(), store, N, K, "");
  }
  TensorStore store;
  Module module;
};

double loss_on(const std::vector<float>& x, const MatrixSource& source, const EncodeRules& rules,
               const ScaleTable& table, const std::vector<uint8_t>& codes) {
  const size_t K = source.columns();
  std::vector<float> row(K);
  double sum = 0;
  for (size_t n = 0; n < source.rows(); ++n) {
    source.read_row(n, row.data());
    for (size_t r = 0; r < x.size() / K; ++r) {
      double d = 0;
      for (size_t k = 0; k < K; ++k) {
        const GranuleScale& s = table.scales[n * table.groups + k / table.block_k];
        d += static_cast<double>(x[r * K + k]) * (row[k] - decode(rules, s, codes[n * K + k]));
      }
      sum += d * d;
    }
  }
  return sum;
}

TEST(Gptq, LosesLessThanSearchAndThatLessThanRounding) {
  const test::TempDir dir;
  SplitMix64 random(3);
  const size_t N = 24, K = 64;
  const OneMatrix m(dir, N, K, random);
  LoadBuffer buffer;
  const MatrixSource source(m.module, m.store, buffer);
  const std::vector<float> x = inputs(500, K, random);
  std::vector<float> h = moments_of(x, K), diagonal(K);
  for (size_t k = 0; k < K; ++k) diagonal[k] = h[k * K + k];
  for (const int bits : {3, 4})
    for (const bool symmetric : {true, false}) {
      QuantArgs args;
      args.bits = bits, args.symmetric = symmetric, args.strategy = Strategy::kGroup;
      args.group_size = 32;
      const EncodeRules rules = encode_rules(args, XType::kBf16);
      const ScaleTable plain = rtn_scales(source, args, rules),
                       searched = searched_scales(source, args, rules, diagonal.data());
      const std::vector<uint8_t> rounded = nearest_codes(source, rules, plain),
                                 better = nearest_codes(source, rules, searched);
      EXPECT_LT(relative_loss(source, rules, searched, better, diagonal.data()),
                relative_loss(source, rules, plain, rounded, diagonal.data()));
      HessianFactor factor;
      ASSERT_TRUE(factorize(h, K, 0.01f, true, factor));
      std::vector<float> weights(N * K);
      for (size_t r = 0; r < N; ++r) source.read_row(r, weights.data() + r * K);
      const std::vector<uint8_t> best = gptq_codes(weights, N, factor, rules, searched);
      EXPECT_LT(loss_on(x, source, rules, searched, best),
                0.7 * loss_on(x, source, rules, searched, better));
    }
}

TEST(Search, NeverLosesMoreThanRounding) {
  const test::TempDir dir;
  SplitMix64 random(4);
  const OneMatrix m(dir, 9, 64, random);
  LoadBuffer buffer;
  const MatrixSource source(m.module, m.store, buffer);
  for (const char* name :
       {"W4A16", "W4A16_ASYM", "W8A8", "FP8_DYNAMIC", "NVFP4A16", "MXFP4", "MXFP8"}) {
    std::vector<std::string> unsaid;
    QuantArgs args =
        *QuantConfig::parse(
             parse_json(std::string("{\"quantization_config\": {"
                                    "\"quant_method\": \"compressed-tensors\", \"version\": "
                                    "\"0.19.0\", \"config_groups\": {\"") +
                            name + "\": [\"Linear\"]}}}",
                        "x"),
             "x", unsaid)
             .groups()[0]
             .scheme.weights;
    if (args.group_size == 128) args.group_size = 32;
    EncodeRules rules = encode_rules(args, XType::kBf16);
    rules.global = global_scale_of(XType::kBf16, largest_of(source));
    const ScaleTable plain = rtn_scales(source, args, rules),
                     searched = searched_scales(source, args, rules, nullptr);
    EXPECT_LE(
        relative_loss(source, rules, searched, nearest_codes(source, rules, searched), nullptr),
        relative_loss(source, rules, plain, nearest_codes(source, rules, plain), nullptr))
        << name;
  }
}

}  // namespace
}  // namespace moebius::gptq_test
