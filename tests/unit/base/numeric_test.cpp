// SPDX-License-Identifier: Apache-2.0
// Number formats over every code. The judge is independent of the code under test: values come from
// the definition sign * mantissa * 2^exponent in double, rounding from a nearest search over the
// table of all values.
#include "base/numeric.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace moebius::numeric_test {
namespace {

// All of it works at compile time.
static_assert(bf16_to_f32(0x3F80) == 1.0f && f32_to_bf16(1.0f) == 0x3F80);
static_assert(f16_to_f32(0x3C00) == 1.0f && f32_to_f16(1.0f) == 0x3C00);
static_assert(e4m3_to_f32(0x38) == 1.0f && f32_to_e4m3(1.0f) == 0x38);
static_assert(e2m1_to_f32(2) == 1.0f && f32_to_e2m1(1.0f) == 2 && e2m1_twice(15) == -12);
static_assert(e8m0_to_f32(127) == 1.0f && mx_exponent(6.0f, kMxEmaxE2m1) == 127);

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

double power_of_two(int e) { return std::ldexp(1.0, e); }

// Value of the magnitude bits of a small float by its definition.
double value_of(unsigned m, int mantissa_bits, int bias) {
  const int exponent = static_cast<int>(m >> mantissa_bits);
  const int fraction = static_cast<int>(m & ((1u << mantissa_bits) - 1u));
  if (exponent == 0) return fraction * power_of_two(1 - bias - mantissa_bits);
  return (fraction + (1 << mantissa_bits)) * power_of_two(exponent - bias - mantissa_bits);
}

// The code of the nearest value in an ascending table, ties to the even code.
unsigned nearest_code(const std::vector<double>& values, double x) {
  const double a = std::fabs(x);
  const auto upper = std::lower_bound(values.begin(), values.end(), a);
  if (upper == values.end()) return static_cast<unsigned>(values.size() - 1);
  const auto hi = static_cast<unsigned>(upper - values.begin());
  if (*upper == a) return hi;
  const double to_hi = values[hi] - a;
  const double to_lo = a - values[hi - 1];
  if (to_lo == to_hi) return hi % 2 == 0 ? hi : hi - 1;
  return to_lo < to_hi ? hi - 1 : hi;
}

std::vector<double> table(unsigned count, int mantissa_bits, int bias) {
  std::vector<double> values(count);
  for (unsigned m = 0; m < count; ++m) values[m] = value_of(m, mantissa_bits, bias);
  return values;
}

// Every value, every midpoint, their neighbours in f32, random numbers and random bit patterns.
std::vector<float> interesting_inputs(const std::vector<double>& values) {
  std::vector<float> inputs = {
      0.0f, 1.40129846e-45f, 1.17549435e-38f, 1e30f, kInf, std::numeric_limits<float>::max()};
  const auto add = [&](double v) {
    const float f = static_cast<float>(v);
    inputs.insert(inputs.end(), {std::nextafter(f, -kInf), f, std::nextafter(f, kInf)});
  };
  for (size_t i = 0; i < values.size(); ++i) {
    add(values[i]);
    if (i + 1 < values.size()) add((values[i] + values[i + 1]) / 2);
  }
  std::mt19937 random(20240917);
  std::uniform_real_distribution<double> uniform(0.0, 1.0);
  for (int i = 0; i < 200000; ++i) {
    inputs.push_back(static_cast<float>(uniform(random) * values[values.size() - 2] * 1.1));
    const float any = f32_from_bits(static_cast<uint32_t>(random()) & 0x7FFFFFFFu);
    if (any == any) inputs.push_back(any);
  }
  return inputs;
}

template <class Encode>
void expect_nearest(const std::vector<double>& values, unsigned sign_bit, Encode encode) {
  size_t bad = 0;
  for (const float a : interesting_inputs(values)) {
    for (const float x : {a, -a}) {
      const unsigned expected =
          nearest_code(values, static_cast<double>(x)) | (std::signbit(x) ? sign_bit : 0u);
      const unsigned got = encode(x);
      if (got != expected && ++bad <= 10) {
        ADD_FAILURE() << std::hexfloat << x << " gives code " << got << ", nearest is " << expected;
      }
    }
  }
  EXPECT_EQ(bad, 0u);
}

TEST(Numeric, Bf16EveryCode) {
  for (unsigned h = 0; h < 65536; ++h) {
    const float f = bf16_to_f32(static_cast<uint16_t>(h));
    if ((h & 0x7FFF) > 0x7F80) {
      ASSERT_TRUE(std::isnan(f));
      ASSERT_EQ(f32_to_bf16(f), h | 0x40u);
      continue;
    }
    if ((h & 0x7FFF) == 0x7F80) {
      ASSERT_EQ(f, (h & 0x8000) ? -kInf : kInf);
    } else {
      const double value = value_of(h & 0x7FFF, 7, 127);
      ASSERT_EQ(static_cast<double>(f), (h & 0x8000) ? -value : value);
    }
    ASSERT_EQ(std::signbit(f), (h & 0x8000) != 0);
    ASSERT_EQ(f32_to_bf16(f), h);
  }
}

TEST(Numeric, Bf16RoundsToNearestEven) {
  // The entry for 0x7F80 counts as 2^128, so that overflow to infinity is a case of nearest.
  expect_nearest(table(0x7F81, 7, 127), 0x8000u, [](float x) { return unsigned{f32_to_bf16(x)}; });
  EXPECT_EQ(f32_to_bf16(f32_from_bits(0x7F800001u)), 0x7FC0);  // must not become infinity
  EXPECT_EQ(f32_to_bf16(f32_from_bits(0xFFFFFFFFu)), 0xFFFF);
}

TEST(Numeric, F16EveryCode) {
  for (unsigned h = 0; h < 65536; ++h) {
    const float f = f16_to_f32(static_cast<uint16_t>(h));
    if ((h & 0x7FFF) > 0x7C00) {
      ASSERT_TRUE(std::isnan(f));
      ASSERT_EQ(f32_to_f16(f), h | 0x200u);
      continue;
    }
    if ((h & 0x7FFF) == 0x7C00) {
      ASSERT_EQ(f, (h & 0x8000) ? -kInf : kInf);
    } else {
      const double value = value_of(h & 0x7FFF, 10, 15);
      ASSERT_EQ(static_cast<double>(f), (h & 0x8000) ? -value : value);
    }
    ASSERT_EQ(std::signbit(f), (h & 0x8000) != 0);
    ASSERT_EQ(f32_to_f16(f), h);
  }
}

TEST(Numeric, F16RoundsToNearestEven) {
  expect_nearest(table(0x7C01, 10, 15), 0x8000u, [](float x) { return unsigned{f32_to_f16(x)}; });
  EXPECT_EQ(f32_to_f16(65504.0f), 0x7BFF);
  EXPECT_EQ(f32_to_f16(std::nextafter(65520.0f, 0.0f)), 0x7BFF);
  EXPECT_EQ(f32_to_f16(65520.0f), 0x7C00);
  EXPECT_EQ(f32_to_f16(f32_from_bits(0x7F800001u)), 0x7E00);
  EXPECT_EQ(f32_to_f16(f32_from_bits(0xFF800001u)), 0xFE00);
}

TEST(Numeric, E4m3EveryCode) {
  for (unsigned c = 0; c < 256; ++c) {
    const float f = e4m3_to_f32(static_cast<uint8_t>(c));
    ASSERT_EQ(f32_to_e4m3(f), c);
    if ((c & 0x7F) == 0x7F) {
      ASSERT_TRUE(std::isnan(f));
      continue;
    }
    const double value = value_of(c & 0x7F, 3, 7);
    ASSERT_EQ(static_cast<double>(f), (c & 0x80) ? -value : value) << c;
    ASSERT_EQ(std::signbit(f), (c & 0x80) != 0);
  }
}

TEST(Numeric, E4m3RoundsToNearestEvenAndSaturates) {
  expect_nearest(table(0x7F, 3, 7), 0x80u, [](float x) { return unsigned{f32_to_e4m3(x)}; });
  const float cases[][2] = {{17, 16}, {18, 18},           {19, 20},   {21, 20},
                            {22, 22}, {0.0009765625f, 0}, {447, 448}, {0.0029296875f, 0.00390625f}};
  for (const auto& c : cases) EXPECT_EQ(e4m3_to_f32(f32_to_e4m3(c[0])), c[1]) << c[0];
  EXPECT_EQ(f32_to_e4m3(1000.0f), 0x7E);
  EXPECT_EQ(f32_to_e4m3(-kInf), 0xFE);
  EXPECT_EQ(f32_to_e4m3(f32_from_bits(0x7FC00000u)), 0x7F);
  EXPECT_EQ(f32_to_e4m3(f32_from_bits(0xFF800001u)), 0xFF);
}

TEST(Numeric, E4m3Row) {
  const float row[] = {0.5f, -3.0f, 7.0f, 0.001f};
  const uint8_t codes[] = {0x60, 0xF4, 0x7E, 0x18};
  const float back[] = {0.5f, -3.0f, 7.0f, 0.0009765625f};
  const float s = 7.0f / 448.0f;
  EXPECT_EQ(s, 0.015625f);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(f32_to_e4m3(row[i] / s), codes[i]);
    EXPECT_EQ(e4m3_to_f32(codes[i]) * s, back[i]);
  }
}

TEST(Numeric, E5m2EveryCode) {
  for (unsigned c = 0; c < 256; ++c) {
    const float f = e5m2_to_f32(static_cast<uint8_t>(c));
    const double sign = (c & 0x80) ? -1.0 : 1.0;
    if ((c & 0x7F) > 0x7C) {
      ASSERT_TRUE(std::isnan(f));
    } else if ((c & 0x7F) == 0x7C) {
      ASSERT_EQ(f, sign < 0 ? -kInf : kInf);
    } else {
      ASSERT_EQ(static_cast<double>(f), sign * value_of(c & 0x7F, 2, 15)) << c;
      ASSERT_EQ(std::signbit(f), (c & 0x80) != 0);
    }
  }
}

TEST(Numeric, FnuzEveryCode) {
  for (unsigned c = 0; c < 256; ++c) {
    const float a = e4m3fnuz_to_f32(static_cast<uint8_t>(c));
    const float b = e5m2fnuz_to_f32(static_cast<uint8_t>(c));
    if (c == 0x80) {
      ASSERT_TRUE(std::isnan(a));
      ASSERT_TRUE(std::isnan(b));
      continue;
    }
    const double sign = (c & 0x80) ? -1.0 : 1.0;
    ASSERT_EQ(static_cast<double>(a), sign * value_of(c & 0x7F, 3, 8)) << c;
    ASSERT_EQ(static_cast<double>(b), sign * value_of(c & 0x7F, 2, 16)) << c;
  }
  EXPECT_EQ(e4m3fnuz_to_f32(0x7F), 240.0f);
  EXPECT_EQ(e5m2fnuz_to_f32(0x7F), 57344.0f);
}

TEST(Numeric, E2m1EveryCode) {
  const float magnitudes[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
  for (unsigned c = 0; c < 16; ++c) {
    const float expected = (c & 8) ? -magnitudes[c & 7] : magnitudes[c & 7];
    const float f = e2m1_to_f32(c);
    EXPECT_EQ(f, expected);
    EXPECT_EQ(std::signbit(f), (c & 8) != 0);
    EXPECT_EQ(static_cast<float>(e2m1_twice(c)), 2 * expected);
    EXPECT_EQ(f32_to_e2m1(f), c);
    EXPECT_EQ(e2m1_to_f32(c | 0xF0u), f) << "bits above the code must not matter";
    EXPECT_EQ(e2m1_twice(c | 0xF0u), e2m1_twice(c));
  }
}

TEST(Numeric, E2m1RoundsTiesToEvenCode) {
  expect_nearest(table(8, 1, 1), 8u, [](float x) { return f32_to_e2m1(x); });
  const float ties[][2] = {{0.25f, 0}, {0.75f, 1}, {1.25f, 1}, {1.75f, 2},
                           {2.5f, 2},  {3.5f, 4},  {5, 4}};
  for (const auto& t : ties) EXPECT_EQ(e2m1_to_f32(f32_to_e2m1(t[0])), t[1]) << t[0];
  EXPECT_EQ(f32_to_e2m1(-0.0f), 8u);
  EXPECT_EQ(f32_to_e2m1(-0.1f), 8u);
  EXPECT_EQ(f32_to_e2m1(kInf), 7u);
  EXPECT_EQ(f32_to_e2m1(-1e9f), 15u);
  EXPECT_EQ(f32_to_e2m1(kNan), 0u);
  EXPECT_EQ(f32_to_e2m1(-kNan), 0u);
}

// Codes of a block by the reciprocal form x * (G / s8). At G = 100 three elements lie next to a tie
// (0.3 * 4.1666667 and 0.3 / 0.24 fall on different sides of 1.25), so this vector belongs to that
// form only.
TEST(Numeric, Nvfp4Block) {
  const float x[] = {.1f, -.2f, .3f,   .4f,  -.5f, .6f,  .7f,    -.8f,
                     .9f, 1,    -1.1f, 1.2f, 0,    .05f, -.025f, 1.5f};
  const uint8_t bytes[] = {0xA1, 0x32, 0x4C, 0xD5, 0x66, 0x6E, 0x00, 0x78};
  const float scale_codes[][2] = {{1792.0f, 0x7E}, {100.0f, 0x5C}};
  for (const auto& [global, scale_code] : scale_codes) {
    const uint8_t s8 = f32_to_e4m3((1.5f / 6.0f) * global);
    EXPECT_EQ(static_cast<float>(s8), scale_code);
    const float o = global / e4m3_to_f32(s8);
    for (int j = 0; j < 8; ++j) {
      const unsigned low = f32_to_e2m1(x[2 * j] * o);
      const unsigned high = f32_to_e2m1(x[2 * j + 1] * o);
      EXPECT_EQ(low + 16 * high, bytes[j]) << j;
    }
  }
}

TEST(Numeric, E8m0EveryCode) {
  for (unsigned b = 0; b < 255; ++b) {
    EXPECT_EQ(static_cast<double>(e8m0_to_f32(static_cast<uint8_t>(b))),
              power_of_two(static_cast<int>(b) - 127));
  }
  EXPECT_TRUE(std::isnan(e8m0_to_f32(255)));
}

TEST(Numeric, GoldenVectors) {
  EXPECT_EQ(e4m3_to_f32(0x7E), 448.0f);
  EXPECT_EQ(e4m3_to_f32(0x38), 1.0f);
  EXPECT_EQ(e4m3_to_f32(0x08), 0x1p-6f);
  EXPECT_EQ(e4m3_to_f32(0x01), 0x1p-9f);
  EXPECT_EQ(e4m3_to_f32(0xFE), -448.0f);
  EXPECT_TRUE(std::isnan(e4m3_to_f32(0x7F)));
  EXPECT_EQ(e5m2_to_f32(0x7B), 57344.0f);
  EXPECT_EQ(e5m2_to_f32(0x3C), 1.0f);
  EXPECT_EQ(e5m2_to_f32(0x01), 0x1p-16f);
  EXPECT_EQ(e8m0_to_f32(127), 1.0f);
  EXPECT_EQ(e8m0_to_f32(120), 0x1p-7f);
  EXPECT_EQ(e8m0_to_f32(0), 0x1p-127f);
  EXPECT_EQ(f32_to_e2m1(1.5f) + 16 * f32_to_e2m1(-6.0f), 0xF3u);
}

// amax as a power of two, rounded up from mantissa 1.75 on.
int mx_exponent_by_definition(double amax, int emax) {
  if (amax == 0) return 0;
  int e = 0;
  const double mantissa = 2 * std::frexp(amax, &e);
  const int power = e - 1 + (mantissa >= 1.75 ? 1 : 0);
  return std::clamp(127 + power - emax, 0, 254);
}

TEST(Numeric, MxExponent) {
  const float vectors[][2] = {{6, 0}, {7, 1}, {3.5f, 0}, {3.4f, -1}, {1, -2}, {0, -127}};
  for (const auto& v : vectors)
    EXPECT_EQ(mx_exponent(v[0], kMxEmaxE2m1) - 127, static_cast<int>(v[1])) << v[0];
  EXPECT_EQ(mx_exponent(448.0f, kMxEmaxE4m3), 128);  // mantissa 1.75 counts as the next power
  EXPECT_EQ(mx_exponent(447.0f, kMxEmaxE4m3), 127);
  EXPECT_EQ(mx_exponent(kInf, kMxEmaxE2m1), 255);
  EXPECT_EQ(mx_exponent(kNan, kMxEmaxE4m3), 255);
  for (uint32_t u = 0; u < 0x7F800000u; u += 997) {
    // The two ends of the upper band of every exponent, then a scan.
    const uint32_t base = u & 0x7F800000u;
    for (const uint32_t bits : {u, base | 0x5FFFFFu, base | 0x600000u}) {
      const float amax = f32_from_bits(bits);
      for (const int emax : {kMxEmaxE2m1, kMxEmaxE4m3}) {
        ASSERT_EQ(mx_exponent(amax, emax),
                  mx_exponent_by_definition(static_cast<double>(amax), emax))
            << amax;
      }
    }
  }
}

TEST(Numeric, RneIsNearestEven) {
  const float cases[][2] = {{0.5f, 0},
                            {1.5f, 2},
                            {2.5f, 2},
                            {-0.5f, -0.0f},
                            {-1.5f, -2},
                            {-2.5f, -2},
                            {0.49999997f, 0},
                            {8388607.5f, 8388608},
                            {8388606.5f, 8388606},
                            {-126.5f, -126}};
  for (const auto& c : cases) {
    EXPECT_EQ(rne(c[0]), c[1]);
    EXPECT_EQ(std::signbit(rne(c[0])), std::signbit(c[1]));
  }
  for (uint64_t u = 0; u < (uint64_t{1} << 32); u += 4999) {
    const float x = f32_from_bits(static_cast<uint32_t>(u));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(rne(x)));
      continue;
    }
    // Definition in double: floor, then decide by the fraction; exact because floor and fraction
    // are.
    const double d = static_cast<double>(x);
    double expected = std::floor(d);
    const double fraction = std::isinf(d) ? 0.0 : d - expected;
    if (fraction > 0.5 || (fraction == 0.5 && std::fmod(expected, 2.0) != 0.0)) expected += 1;
    ASSERT_EQ(static_cast<double>(rne(x)), expected) << x;
    ASSERT_EQ(std::signbit(rne(x)), std::signbit(x)) << x;
  }
}

TEST(Numeric, RoundAwayFromZero) {
  for (uint64_t u = 0; u < (uint64_t{1} << 32); u += 4999) {
    const float x = f32_from_bits(static_cast<uint32_t>(u));
    if (std::isnan(x)) {
      ASSERT_TRUE(std::isnan(round_away(x)));
    } else {
      ASSERT_EQ(round_away(x), std::round(x)) << x;
    }
  }
  for (float x = -300.0f; x <= 300.0f; x += 0.25f)
    for (const float v : {x, std::nextafter(x, kInf), std::nextafter(x, -kInf)})
      ASSERT_EQ(round_away(v), std::round(v)) << v;
}

TEST(Numeric, ClampKeepsNan) {
  EXPECT_EQ(clamp_f32(9.0f, -7.0f, 7.0f), 7.0f);
  EXPECT_EQ(clamp_f32(-kInf, -7.0f, 7.0f), -7.0f);
  EXPECT_EQ(clamp_f32(3.0f, -7.0f, 7.0f), 3.0f);
  EXPECT_TRUE(std::isnan(clamp_f32(kNan, -7.0f, 7.0f)));
  EXPECT_EQ(abs_f32(-0.0f), 0.0f);
  EXPECT_FALSE(std::signbit(abs_f32(-0.0f)));
}

}  // namespace
}  // namespace moebius::numeric_test
