// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <cmath>
#include <optional>
#include <random>

#include "nn/norm.h"
#include "nn/rope.h"
#include "unit/allocations_util.h"

namespace moebius::norm_rope_test {
namespace {

std::vector<float> random_row(size_t n, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal;
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

TEST(Norm, VariantsEqualTheirDefinition) {
  for (const size_t n : {1u, 5u, 64u, 100u}) {
    const std::vector<float> x = random_row(n, 1), w = random_row(n, 2), b = random_row(n, 3);
    double square = 0, mean = 0, var = 0;
    for (const float v : x) square += double{v} * v, mean += v;
    mean /= static_cast<double>(n);
    for (const float v : x) var += (v - mean) * (v - mean);
    const double r = 1 / std::sqrt(square / static_cast<double>(n) + 1e-5),
                 s = 1 / std::sqrt(var / static_cast<double>(n) + 1e-5);
    for (const NormKind kind : {NormKind::kRms, NormKind::kRmsFused, NormKind::kRmsOnePlus,
                                NormKind::kRmsPlain, NormKind::kLayer}) {
      std::vector<float> y(n);
      normalize({kind, 1e-5f, w, b}, XType::kF32, x.data(), n, y.data(), n, 1, n);
      for (size_t i = 0; i < n; ++i) {
        const double expected = kind == NormKind::kLayer        ? (x[i] - mean) * s * w[i] + b[i]
                                : kind == NormKind::kRmsPlain   ? x[i] * r
                                : kind == NormKind::kRmsOnePlus ? x[i] * r * (1 + double{w[i]})
                                                                : x[i] * r * w[i];
        EXPECT_NEAR(y[i], expected, 3e-6 * (1 + std::fabs(expected)))
            << static_cast<int>(kind) << " " << n;
      }
    }
  }
}

TEST(Norm, LlamaStyleRoundsBeforeTheWeight) {
  const std::vector<float> x = {1.0f, 2.0f, 3.0f, 4.0f}, w = {1.01f, 1.01f, 1.01f, 1.01f};
  std::vector<float> once(4), twice(4);
  normalize({NormKind::kRmsFused, 0, w, {}}, XType::kBf16, x.data(), 4, once.data(), 4, 1, 4);
  normalize({NormKind::kRms, 0, w, {}}, XType::kBf16, x.data(), 4, twice.data(), 4, 1, 4);
  EXPECT_NE(once, twice);
}

TEST(Rope, RotatesPairs) {
  RopeSpec spec;
  spec.dims = 4, spec.base = 100;
  Rope rope(spec);
  rope.reserve(8);
  float half[6] = {1, 2, 3, 4, 5, 6};
  rope.rotate(half, 3, 4, XType::kF32);
  const float angle0 = 3.0f, angle1 = 0.3f;
  EXPECT_NEAR(half[0], 1 * std::cos(angle0) - 3 * std::sin(angle0), 1e-6);
  EXPECT_NEAR(half[2], 3 * std::cos(angle0) + 1 * std::sin(angle0), 1e-6);
  EXPECT_NEAR(half[1], 2 * std::cos(angle1) - 4 * std::sin(angle1), 1e-6);
  EXPECT_EQ(half[4], 5);
  EXPECT_EQ(half[5], 6);
  spec.interleaved = true;
  Rope pairs(spec);
  pairs.reserve(8);
  float x[4] = {1, 2, 3, 4};
  pairs.rotate(x, 3, 4, XType::kF32);
  EXPECT_NEAR(x[0], 1 * std::cos(angle0) - 2 * std::sin(angle0), 1e-6);
  EXPECT_NEAR(x[3], 4 * std::cos(angle1) + 3 * std::sin(angle1), 1e-6);
}

RopeSpec dynamic_spec(double base) {
  RopeSpec spec;
  spec.dims = 8, spec.base = base, spec.factor = 4, spec.original_length = 16;
  spec.scaling = RopeScaling::kDynamic;
  return spec;
}

// A second rotation at the address of the first, which this thread used for the same length.
TEST(Rope, DynamicFrequenciesBelongToTheRotation) {
  std::optional<Rope> place(dynamic_spec(100));
  const Rope* before = &*place;
  const float first = place->turn(20, 32).cos[1];
  place.emplace(dynamic_spec(10000));
  ASSERT_EQ(&*place, before);
  const double own = rope_frequencies(dynamic_spec(10000), 32)[1];
  EXPECT_NEAR(place->turn(20, 32).cos[1], std::cos(20 * own), 1e-5);
  EXPECT_NE(place->turn(20, 32).cos[1], first);
}

TEST(Rope, DynamicRowsMayRunOutOfMemory) {
  if (!test::allocations_can_fail()) GTEST_SKIP();
  const Rope rope(dynamic_spec(1000));
  {
    const test::FailAllocation failing(0);
    EXPECT_THROW(rope.turn(20, 48), std::bad_alloc);
  }
  const double own = rope_frequencies(dynamic_spec(1000), 48)[2];
  EXPECT_NEAR(rope.turn(20, 48).cos[2], std::cos(20 * own), 1e-5);
}

TEST(Rope, ScaledFrequencies) {
  RopeSpec spec;
  spec.dims = 8, spec.base = 10000, spec.factor = 4, spec.original_length = 4096;
  const std::vector<double> plain = rope_frequencies(spec);
  EXPECT_DOUBLE_EQ(plain[0], 1.0);
  EXPECT_DOUBLE_EQ(plain[1], 0.1);
  spec.scaling = RopeScaling::kLinear;
  EXPECT_DOUBLE_EQ(rope_frequencies(spec)[1], 0.025);
  spec.scaling = RopeScaling::
      kYarn;  // corrections: 8 ln(4096 / 64 pi) / (2 ln 1e4) = 1.31 -> 1; 8 ln(4096 / 2 pi) / (2 ln 1e4) = 2.81 -> 3
  const std::vector<double> yarn = rope_frequencies(spec);
  EXPECT_DOUBLE_EQ(yarn[0], plain[0]);
  EXPECT_DOUBLE_EQ(yarn[1], plain[1]);
  EXPECT_NEAR(yarn[2], plain[2] * (0.5 / 4 + 0.5), 1e-12);
  EXPECT_NEAR(yarn[3], plain[3] / 4, 1e-12);
  spec.scaling = RopeScaling::kLlama3, spec.low_freq_factor = 1, spec.high_freq_factor = 4;
  const std::vector<double> llama = rope_frequencies(spec);
  EXPECT_DOUBLE_EQ(llama[0], plain[0]);        // wavelength 6.3, far below 1024
  EXPECT_NEAR(llama[3], plain[3] / 4, 1e-12);  // wavelength 6283, above 4096
}

}  // namespace
}  // namespace moebius::norm_rope_test
