// SPDX-License-Identifier: Apache-2.0
// The math functions against double precision over scans of all f32 inputs, their special values,
// the vectors of the activation formulas, equality of array and scalar forms, and fingerprints that
// fix the bits across machines.
#include "base/math_functions.h"

#include <gtest/gtest.h>

#include <cfloat>
#include <cmath>
#include <limits>
#include <vector>

namespace moebius::math_functions_test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
const float kNan = std::numeric_limits<float>::quiet_NaN();

double sigmoid_d(double x) { return 1 / (1 + std::exp(-x)); }
double gelu_d(double x) { return 0.5 * x * std::erfc(-x * std::sqrt(0.5)); }
double gelu_tanh_d(double x) {
  return x * sigmoid_d(2 * 0.7978845608028654 * (x + 0.044715 * x * x * x));
}
double softplus_d(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// f32 values from all binades and signs within [lo, hi].
template <class F>
void for_each_float(float lo, float hi, F f) {
  for (uint64_t u = 0; u < (uint64_t{1} << 32); u += 4099) {
    const float x = f32_from_bits(static_cast<uint32_t>(u));
    if (x >= lo && x <= hi) f(x);
  }
}

// The largest relative error where the true result is a normal f32; subnormal results count in
// units of FLT_MIN.
template <class F, class D>
double worst_relative_error(float lo, float hi, F f, D definition) {
  double worst = 0;
  for_each_float(lo, hi, [&](float x) {
    const double exact = definition(static_cast<double>(x));
    const double got = static_cast<double>(f(x));
    if (std::isinf(got) && std::isinf(static_cast<float>(exact))) return;
    const double error =
        std::fabs(got - exact) / std::max(std::fabs(exact), static_cast<double>(FLT_MIN));
    if (!(error <= worst)) worst = error;  // a NaN counts as the worst
  });
  return worst;
}

template <class F, class D>
double worst_absolute_error(float lo, float hi, F f, D definition) {
  double worst = 0;
  for_each_float(lo, hi, [&](float x) {
    const double error = std::fabs(static_cast<double>(f(x)) - definition(static_cast<double>(x)));
    if (!(error <= worst)) worst = error;
  });
  return worst;
}

TEST(MathFunctions, NothingIsContracted) {
  // 1 + 2^-12 squared needs 25 bits; a fused product and difference would not return 0.
  volatile float a = 1.0f + 0x1p-12f;
  const float product = a * a;
  volatile float rounded = product;
  EXPECT_EQ(a * a - rounded, 0.0f);
  EXPECT_EQ(fma_f32(a, a, -rounded), 0x1p-24f);
}

TEST(MathFunctions, ExpWithinOneUlp) {
  double worst = 0;
  for_each_float(-kInf, kInf, [&](float x) {
    const double exact = std::exp(static_cast<double>(x));
    const float got = exp_f32(x);
    if (std::isinf(static_cast<float>(exact))) {
      ASSERT_EQ(got, kInf) << x;
      return;
    }
    int e = 0;
    std::frexp(exact, &e);
    const double ulp = std::ldexp(1.0, std::max(e, -125) - 24);
    worst = std::max(worst, std::fabs(static_cast<double>(got) - exact) / ulp);
  });
  EXPECT_LT(worst, 1.0);
}

TEST(MathFunctions, ExpEdges) {
  EXPECT_EQ(exp_f32(0.0f), 1.0f);
  EXPECT_EQ(exp_f32(-0.0f), 1.0f);
  EXPECT_EQ(exp_f32(kInf), kInf);
  EXPECT_EQ(exp_f32(-kInf), 0.0f);
  EXPECT_FALSE(std::signbit(exp_f32(-kInf)));
  EXPECT_TRUE(std::isnan(exp_f32(kNan)));
  EXPECT_TRUE(std::isnan(exp_f32(-kNan)));
  const float last = 88.7228317f;  // the largest f32 whose exponential is finite
  EXPECT_LT(exp_f32(last), kInf);
  EXPECT_EQ(exp_f32(std::nextafter(last, kInf)), kInf);
  EXPECT_EQ(exp_f32(-103.97f), 0x1p-149f);
  EXPECT_EQ(exp_f32(-103.98f), 0.0f);
  EXPECT_EQ(exp_f32(-FLT_MAX), 0.0f);
  // Near the ends of the range and round the points where the reduction changes n.
  for (int n = -150; n <= 128; ++n) {
    float x = static_cast<float>((n + 0.5) * std::log(2.0));
    for (int step = 0; step < 3; ++step, x = std::nextafter(x, kInf)) {
      const double exact = std::exp(static_cast<double>(x));
      if (exact > static_cast<double>(FLT_MAX)) continue;
      const double tolerance = std::max(exact * 1.2e-7, 1.5e-45);
      ASSERT_NEAR(static_cast<double>(exp_f32(x)), exact, tolerance) << x;
    }
  }
}

TEST(MathFunctions, LogWithinOneUlp) {
  EXPECT_LT(worst_relative_error(
                0x1p-149f, FLT_MAX, [](float x) { return log_f32(x); },
                [](double x) { return std::log(x); }),
            1.2e-7);
  EXPECT_EQ(log_f32(1.0f), 0.0f);
  EXPECT_EQ(log_f32(0.0f), -kInf);
  EXPECT_EQ(log_f32(-0.0f), -kInf);
  EXPECT_EQ(log_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(log_f32(-1.0f)));
  EXPECT_TRUE(std::isnan(log_f32(-kInf)));
  EXPECT_TRUE(std::isnan(log_f32(kNan)));
}

TEST(MathFunctions, Sigmoid) {
  EXPECT_LT(worst_relative_error(
                -kInf, kInf, [](float x) { return sigmoid_f32(x); }, sigmoid_d),
            2e-7);
  EXPECT_EQ(sigmoid_f32(0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f32(-0.0f), 0.5f);
  EXPECT_EQ(sigmoid_f32(kInf), 1.0f);
  EXPECT_EQ(sigmoid_f32(-kInf), 0.0f);
  EXPECT_TRUE(std::isnan(sigmoid_f32(kNan)));
}

TEST(MathFunctions, Silu) {
  const auto definition = [](double x) { return x * sigmoid_d(x); };
  EXPECT_LT(worst_relative_error(
                -87.0f, FLT_MAX, [](float x) { return silu_f32(x); }, definition),
            2.5e-7);
  EXPECT_LT(worst_absolute_error(
                -1e30f, -87.0f, [](float x) { return silu_f32(x); }, definition),
            2e-43);
  EXPECT_EQ(silu_f32(kInf), kInf);
  EXPECT_TRUE(std::signbit(silu_f32(-0.0f)));
  EXPECT_TRUE(std::isnan(silu_f32(kNan)));
  EXPECT_TRUE(std::isnan(silu_f32(-kInf)));
}

TEST(MathFunctions, Tanh) {
  EXPECT_LT(
      worst_relative_error(
          -kInf, kInf, [](float x) { return tanh_f32(x); }, [](double x) { return std::tanh(x); }),
      2e-7);
  EXPECT_EQ(tanh_f32(kInf), 1.0f);
  EXPECT_EQ(tanh_f32(-kInf), -1.0f);
  EXPECT_TRUE(std::signbit(tanh_f32(-0.0f)));
  EXPECT_TRUE(std::isnan(tanh_f32(kNan)));
}

TEST(MathFunctions, Gelu) {
  EXPECT_LT(worst_relative_error(
                -13.0f, FLT_MAX, [](float x) { return gelu_f32(x); }, gelu_d),
            6e-7);
  EXPECT_LT(worst_absolute_error(
                -1e30f, -13.0f, [](float x) { return gelu_f32(x); }, gelu_d),
            1e-43);
  EXPECT_EQ(gelu_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(gelu_f32(kNan)));
  EXPECT_NEAR(gelu_f32(1.0f), 0.84134475f, 4e-7f);
  EXPECT_NEAR(gelu_f32(-1.0f), -0.15865525f, 1e-7f);
}

TEST(MathFunctions, GeluTanh) {
  EXPECT_LT(worst_relative_error(
                -4.0f, 1e10f, [](float x) { return gelu_tanh_f32(x); }, gelu_tanh_d),
            1.5e-6);
  EXPECT_LT(worst_absolute_error(
                -1e10f, -4.0f, [](float x) { return gelu_tanh_f32(x); }, gelu_tanh_d),
            1e-9);
  EXPECT_EQ(gelu_tanh_f32(1e20f), 1e20f);
  EXPECT_EQ(gelu_tanh_f32(-1e20f), 0.0f);
  EXPECT_EQ(gelu_tanh_f32(kInf), kInf);
  EXPECT_TRUE(std::isnan(gelu_tanh_f32(kNan)));
}

TEST(MathFunctions, Softplus) {
  EXPECT_LT(worst_relative_error(
                -kInf, FLT_MAX, [](float x) { return softplus_f32(x); }, softplus_d),
            2.5e-7);
  EXPECT_EQ(softplus_f32(kInf), kInf);
  EXPECT_EQ(softplus_f32(-kInf), 0.0f);
  EXPECT_EQ(softplus_f32(20.5f), 20.5f);
  EXPECT_TRUE(std::isnan(softplus_f32(kNan)));
  const float logits[] = {2, 1, 0, -1, 1.5f, 1.4f, -2, -2};
  const float scores[] = {1.458399f, 1.145976f, .832555f, .559698f,
                          1.304382f, 1.272956f, .35627f,  .35627f};
  for (int i = 0; i < 8; ++i) EXPECT_NEAR(sqrtsoftplus_f32(logits[i]), scores[i], 1e-6f);
}

TEST(MathFunctions, ActivationVectors) {
  EXPECT_FLOAT_EQ(swigluoai(1, 2), 2.5373873f);
  EXPECT_FLOAT_EQ(swigluoai(-1, 2), -0.4626127f);
  EXPECT_FLOAT_EQ(swigluoai(8, -9), -41.9997188f);
  EXPECT_EQ(swigluoai(0, 5), 0.0f);
  EXPECT_FLOAT_EQ(silu_and_mul(1, 2), 1.4621172f);
  EXPECT_FLOAT_EQ(silu_and_mul(-1, 2), -0.5378828f);
  EXPECT_FLOAT_EQ(silu_and_mul(8, -9), -71.9758548f);
  EXPECT_EQ(swiglustep(8, -9), -49.0f);
}

TEST(MathFunctions, GatedFormulas) {
  for (int i = -40; i <= 40; ++i) {
    for (int j = -40; j <= 40; j += 5) {
      const float g = static_cast<float>(i) * 0.37f;
      const float u = static_cast<float>(j) * 0.41f;
      const double gd = static_cast<double>(g);
      const double ud = static_cast<double>(u);
      const auto near = [&](float got, double exact) {
        ASSERT_NEAR(static_cast<double>(got), exact, std::fabs(exact) * 2e-6 + 1e-7)
            << g << " " << u;
      };
      const auto cut = [](double v, double c) { return std::min(std::max(v, -c), c); };
      near(silu_and_mul(g, u), gd * sigmoid_d(gd) * ud);
      near(gelu_and_mul(g, u), gelu_d(gd) * ud);
      near(gelu_tanh_and_mul(g, u), gelu_tanh_d(gd) * ud);
      const double g3 = std::min(gd, 3.0);
      near(silu_limit_and_mul(g, u, 3.0f), g3 * sigmoid_d(g3) * cut(ud, 3.0));
      near(swigluoai(g, u, 1.5f, 3.0f, 0.5f), g3 * sigmoid_d(1.5 * g3) * (cut(ud, 3.0) + 0.5));
      near(swiglustep(g, u), std::min(gd * sigmoid_d(gd), 7.0) * cut(ud, 7.0));
      const double gate = 2.0 * std::tanh(gd / 2.0) * sigmoid_d(gd);
      near(situ(g, u, 2.0f), gate * ud);
      near(situ(g, u, 2.0f, 4.0f), gate * 4.0 * std::tanh(ud / 4.0));
      near(relu2_f32(g), gd > 0 ? gd * gd : 0.0);
    }
  }
  EXPECT_TRUE(std::isnan(swigluoai(kNan, 1.0f)));
  EXPECT_TRUE(std::isnan(swigluoai(1.0f, kNan)));
  EXPECT_TRUE(std::isnan(swiglustep(kNan, 1.0f)));
  EXPECT_TRUE(std::isnan(silu_limit_and_mul(1.0f, kNan, 7.0f)));
  EXPECT_TRUE(std::isnan(relu2_f32(kNan)));
}

TEST(MathFunctions, ExpOfNonpositiveNumbersHasTheBitsOfExp) {
  for (uint32_t bits = 0x80000000u; bits <= 0xFF800000u; bits += 997)
    ASSERT_EQ(f32_bits(exp_nonpositive_f32(f32_from_bits(bits))),
              f32_bits(exp_f32(f32_from_bits(bits))))
        << f32_from_bits(bits);
  EXPECT_EQ(exp_nonpositive_f32(0.0f), 1.0f);
}

TEST(MathFunctions, CoarseExpStaysWithinItsBound) {
  for (float x = 0.0f; x > -87.0f; x -= 0.00137f)
    ASSERT_NEAR(exp_coarse_f32(x) / std::exp(static_cast<double>(x)), 1.0, 6e-6) << x;
  for (const float x : {-87.7f, -88.0f, -1e30f, -kInf})
    EXPECT_EQ(f32_bits(exp_coarse_f32(x)), 0u) << x;
  EXPECT_EQ(exp_coarse_f32(0.0f), 1.0f);
  EXPECT_TRUE(std::isnan(exp_coarse_f32(kNan)) && std::isnan(exp_coarse_f32(-kNan)));
}

// ---- the bits themselves ----

// FNV-1a over the results of a scan of all inputs, every NaN counted as the same.
template <class F>
uint64_t fingerprint(F f) {
  uint64_t hash = 14695981039346656037u;
  for (uint64_t u = 0; u < (uint64_t{1} << 32); u += 4099) {
    const float y = f(f32_from_bits(static_cast<uint32_t>(u)));
    hash = (hash ^ (std::isnan(y) ? 0x7FC00000u : f32_bits(y))) * 1099511628211u;
  }
  return hash;
}

// A change of these numbers changes quantized codes after an activation: it must be meant, and hold
// on every machine.
TEST(MathFunctions, BitsAreTheSameEverywhere) {
  EXPECT_EQ(fingerprint([](float x) { return exp_f32(x); }), 0xA79340B6F10D2852u);
  EXPECT_EQ(fingerprint([](float x) { return exp_coarse_f32(-abs_f32(x)); }), 0xBAA980797AC27055u);
  EXPECT_EQ(fingerprint([](float x) { return log_f32(x); }), 0x2F67C10CD47CDBFAu);
  EXPECT_EQ(fingerprint([](float x) { return silu_f32(x); }), 0xDA54355F81F7079Eu);
  EXPECT_EQ(fingerprint([](float x) { return tanh_f32(x); }), 0x3C1B8221A2A799AAu);
  EXPECT_EQ(fingerprint([](float x) { return gelu_f32(x); }), 0xDDDFB17DFC1D5A83u);
  EXPECT_EQ(fingerprint([](float x) { return gelu_tanh_f32(x); }), 0x4A8BF7169C81D3F0u);
  EXPECT_EQ(fingerprint([](float x) { return softplus_f32(x); }), 0x60E53284C88E282Fu);
}

}  // namespace
}  // namespace moebius::math_functions_test
