// SPDX-License-Identifier: Apache-2.0
// exp, log, sigmoid, tanh, erf, softplus and the activation functions of expert layers, each
// defined ONCE as a fixed sequence of f32 operations: +, -, *, /, fma, integer work on the bits and
// selects. No libm, no tables. Scalar code, any vector width and any tail give equal bits because
// every lane does the same operations in the same order; a hand-written vector version must copy
// the sequence, Horner steps included. Needs -ffp-contract=off and the default floating-point
// environment. NaN in gives NaN out (payload unspecified). Measured errors stand beside each
// function; one ulp of a result y is at most 1.2e-7 * |y|. The coefficients are minimax polynomials
// (relative error), rounded to f32.
#pragma once

#include <cstdint>

#include "base/numeric.h"

namespace moebius {

// Returns a * b + c with one rounding: one instruction where the target has it, otherwise a slow
// but exact library call.
MOEBIUS_ALWAYS_INLINE float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

namespace numeric_detail {

// Coefficients of e^x, which vector versions use too (kernels/arm/arm_neon_rows.cpp).
inline constexpr float kLog2E = 1.44269504f, kMinusLn2High = -0.693145752f,
                       kMinusLn2Low = -1.42860677e-6f;
inline constexpr float kExp6 = 0.00138145976f, kExp5 = 0.00836871937f, kExp4 = 0.041668389f,
                       kExp3 = 0.166665211f, kExp2 = 0.49999994f;
// Constants of exp_nonpositive_f32: t = x * log2 e + kExpMagic64 holds n + 64 in its low bits; the
// product with 2^-64 takes the 64 out again.
inline constexpr float kExpMagic64 = 12582912.0f + 64.0f, kExpMinus64 = 5.42101086e-20f;
// Constants of exp_coarse_f32: t = x * log2 e + kExpMagic127 holds n + 127 in its low bits, which
// is the exponent field of 2^n.
inline constexpr float kExpMagic = 12582912.0f, kExpMagic127 = 12582912.0f + 127.0f;
inline constexpr float kExpCoarseLeast = -88.0f;  // least x of exp_coarse_f32, for which n = -127
inline constexpr float kExpCoarse4 = 0.009782912553481137f, kExpCoarse3 = 0.05597688362709463f,
                       kExpCoarse2 = 0.24020711078853463f, kExpCoarse1 = 0.693113604403908f;

MOEBIUS_ALWAYS_INLINE float exp_polynomial(float r) {
  float p = fma_f32(kExp6, r, kExp5);
  p = fma_f32(p, r, kExp4);
  p = fma_f32(p, r, kExp3);
  p = fma_f32(p, r, kExp2);
  p = fma_f32(p, r, 1.0f);
  return fma_f32(p, r, 1.0f);
}

}  // namespace numeric_detail

// Returns e^x within 0.9 ulp. Overflow gives infinity (x > 88.72284), underflow is gradual and ends
// in 0 (x < -103.97).
//  1. clamp to [-104, 89]: both ends already give 0 and infinity, and every exponent below stays in
//  range
//  2. t = fma(x, log2(e), 1.5 * 2^23): the low bits of t hold n = RNE(x * log2 e)
//  3. r = (x - n * ln2_hi) - n * ln2_lo, two fma; |r| <= 0.3466
//  4. p = 1 + r + r^2 * (c2 + c3 r + c4 r^2 + c5 r^3 + c6 r^4) by Horner with fma
//  5. p * 2^(n >> 1) * 2^(n - (n >> 1)): only the last product can round, overflow or become
//  subnormal
MOEBIUS_ALWAYS_INLINE float exp_f32(float x) {
  constexpr float kMagic = numeric_detail::kExpMagic;
  const float c = clamp_f32(x, -104.0f, 89.0f);
  const float t = fma_f32(c, numeric_detail::kLog2E, kMagic);
  const float n = t - kMagic;
  const float r =
      fma_f32(n, numeric_detail::kMinusLn2Low, fma_f32(n, numeric_detail::kMinusLn2High, c));
  const float p = numeric_detail::exp_polynomial(r);
  const auto e = static_cast<int32_t>(f32_bits(t) - f32_bits(kMagic));
  const int32_t first = e >> 1;
  const auto first_bits = static_cast<uint32_t>(first) + 127u;
  const auto second_bits = static_cast<uint32_t>(e) - static_cast<uint32_t>(first) + 127u;
  return (p * f32_from_bits(first_bits << 23)) * f32_from_bits(second_bits << 23);
}

// Returns exp_f32(x) for x <= 0, the same bits with less work after the polynomial: t holds n + 64,
// so p * 2^(n + 64) is an addition to p's exponent that never leaves the normal numbers, and the
// product with 2^-64 is the only rounding. The result for NaN is unspecified.
MOEBIUS_ALWAYS_INLINE float exp_nonpositive_f32(float x) {
  using namespace numeric_detail;
  const float c = select_f32(x < -104.0f, -104.0f, x);
  const float t = fma_f32(c, kLog2E, kExpMagic64);
  const float n = t - kExpMagic64;
  const float p = exp_polynomial(fma_f32(n, kMinusLn2Low, fma_f32(n, kMinusLn2High, c)));
  return f32_from_bits(f32_bits(p) + (f32_bits(t) << 23)) * kExpMinus64;
}

// Returns e^(x - top) for x <= top, for softmax; NaN gives NaN.
MOEBIUS_ALWAYS_INLINE float exp_minus(float x, float top) {
  const float d = x - top;
  return select_f32(d <= 0.0f, exp_nonpositive_f32(d), d);
}

// Returns a coarser e^x for x <= 0, whose result is rounded to bf16 next (the probabilities of bf16
// attention): 2^n (1 + f q(f)), q of degree 3, within 6e-6. Results below 2^-126 become 0: for x <
// -87.7.
MOEBIUS_ALWAYS_INLINE float exp_coarse_f32(float x) {
  using namespace numeric_detail;
  const float c = select_f32(x < kExpCoarseLeast, kExpCoarseLeast, x);
  const float t = fma_f32(c, kLog2E, kExpMagic127);
  const float f = fma_f32(c, kLog2E, -(t - kExpMagic127));  // |f| <= 1/2
  float q = fma_f32(kExpCoarse4, f, kExpCoarse3);
  q = fma_f32(q, f, kExpCoarse2);
  q = fma_f32(q, f, kExpCoarse1);
  const float power = f32_from_bits(f32_bits(t) << 23);
  return fma_f32(q * f, power, power);
}

// Returns the weight of a token in a random draw (docs/numerics.md, "Sampling"): 2^((x - top) *
// rate) for x <= top, within 3e-7, rounded to a multiple of 2^-23 * grid; 0 for NaN and below
// 2^-64. With grid = 2^-11 the f64 sum of 2^19 weights is exact in any order. Uses no fma, which is
// a slow library call on the baseline x86-64 CPU.
MOEBIUS_ALWAYS_INLINE float token_weight_f32(float x, float top, float rate, float grid) {
  using namespace numeric_detail;
  const float e = (x - top) * rate;
  const float y = select_f32(e > -64.0f, e, -64.0f);
  const float t = y + kExpMagic;
  const float f = y - (t - kExpMagic);  // |f| <= 1/2
  float p = (0.00133813021f * f) + 0.00966636837f;
  p = (p * f) + 0.0555038117f;
  p = (p * f) + 0.240223497f;
  p = (p * f) + 0.693147182f;
  p = (p * f) + 1.0f;
  return (f32_from_bits(f32_bits(p) + (f32_bits(t) << 23)) + grid) - grid;
}

// Returns the natural logarithm within 0.9 ulp. 0 gives -infinity, negative gives NaN, subnormals
// are exact inputs.
//  x = m * 2^e with m in [sqrt(1/2), sqrt(2)), f = m - 1; log x = e ln2_hi + (f + (f^3 P(f) + e
//  ln2_lo - f^2 / 2))
MOEBIUS_ALWAYS_INLINE float log_f32(float x) {
  constexpr uint32_t kSqrtHalf = 0x3F3504F3u;
  const bool tiny = x < 1.17549435e-38f;
  const uint32_t u = f32_bits(x * select_f32(tiny, 8388608.0f, 1.0f)) - kSqrtHalf;
  const float e = static_cast<float>(static_cast<int32_t>(u) >> 23) - select_f32(tiny, 23.0f, 0.0f);
  const float f = f32_from_bits((u & 0x7FFFFFu) + kSqrtHalf) - 1.0f;
  const float f2 = f * f;
  float p = -0.0763448626f;
  p = fma_f32(p, f, 0.127615646f);
  p = fma_f32(p, f, -0.13160181f);
  p = fma_f32(p, f, 0.142017603f);
  p = fma_f32(p, f, -0.166233584f);
  p = fma_f32(p, f, 0.200012267f);
  p = fma_f32(p, f, -0.250008196f);
  p = fma_f32(p, f, 0.333333313f);
  float y = (p * f) * f2;
  y = fma_f32(e, 1.42860677e-6f, y);
  y = fma_f32(-0.5f, f2, y);
  y = fma_f32(e, 0.693145752f, f + y);
  const uint32_t a = f32_bits(x) & 0x7FFFFFFFu;
  y = select_f32(f32_bits(x) == 0x7F800000u, x, y);
  y = select_f32(a == 0u, f32_from_bits(0xFF800000u), y);
  const bool nan = (x < 0.0f) | (a > 0x7F800000u);
  return f32_from_bits(select_bits(nan, numeric_detail::kQuietNan, f32_bits(y)));
}

// Returns 1 / (1 + e^-x), computed as (x < 0 ? e : 1) / (1 + e) with e = e^-|x|: no overflow, and
// both tails are accurate. Relative error 1.7e-7, also where the result is almost subnormal.
MOEBIUS_ALWAYS_INLINE float sigmoid_f32(float x) {
  const float e = exp_f32(-abs_f32(x));
  return select_f32(x < 0.0f, e, 1.0f) / (1.0f + e);
}

// Returns sigmoid_f32(x), but an unspecified number for NaN: for products with x, which are NaN
// anyway.
MOEBIUS_ALWAYS_INLINE float sigmoid_factor_f32(float x) {
  const float e = exp_nonpositive_f32(f32_from_bits(f32_bits(x) | 0x80000000u));
  return select_f32(x < 0.0f, e, 1.0f) / (1.0f + e);
}

// Returns x * sigmoid(x). Relative error 2.1e-7 for x > -87, absolute error 2e-43 below. -infinity
// gives NaN.
MOEBIUS_ALWAYS_INLINE float silu_f32(float x) { return x * sigmoid_factor_f32(x); }

// Returns tanh(x), relative error 1.4e-7. With a = |x|: for a <= 0.625, a + a * (P(z) * z) with z =
// a^2; beyond, 1 - 2 / (1 + e^(2a)); then the sign of x.
MOEBIUS_ALWAYS_INLINE float tanh_f32(float x) {
  const float a = abs_f32(x);
  const float z = a * a;
  float p = -0.00566078722f;
  p = fma_f32(p, z, 0.0206020065f);
  p = fma_f32(p, z, -0.0537292287f);
  p = fma_f32(p, z, 0.133313283f);
  p = fma_f32(p, z, -0.333332777f);
  const float small = fma_f32(a, p * z, a);
  const float large = 1.0f - 2.0f / (1.0f + exp_f32(a + a));
  const uint32_t sign = f32_bits(x) & 0x80000000u;
  return f32_from_bits(select_bits(a <= 0.625f, f32_bits(small), f32_bits(large)) | sign);
}

// Returns limit * tanh(x / limit), a soft cap: close to x for small x, never beyond the limit.
MOEBIUS_ALWAYS_INLINE float cap_f32(float x, float limit) { return limit * tanh_f32(x / limit); }

namespace numeric_detail {

// Returns erfc(a) = e^(-a^2) * t * S(t) for a >= 0, with t = 1 / (1 + 0.4 a). The caller passes t,
// and a^2 as the unevaluated sum square + rest (rest from fma), because the exponential magnifies a
// relative error of its argument a^2 times.
MOEBIUS_ALWAYS_INLINE float erfc_from(float t, float square, float rest) {
  float s = -0.0292062666f;
  s = fma_f32(s, t, 0.195905417f);
  s = fma_f32(s, t, -0.493854761f);
  s = fma_f32(s, t, 0.540825307f);
  s = fma_f32(s, t, -0.278869569f);
  s = fma_f32(s, t, 0.269116193f);
  s = fma_f32(s, t, 0.130699068f);
  s = fma_f32(s, t, 0.214700758f);
  s = fma_f32(s, t, 0.224978283f);
  s = fma_f32(s, t, 0.225705564f);
  const float e = exp_f32(-square);
  return fma_f32(e, -rest, e) * (t * s);
}

}  // namespace numeric_detail

// Returns 0.5 * x * (1 + erf(x / sqrt 2)), computed as x * Phi(x) with Phi(-a) = erfc(a / sqrt 2) /
// 2 without cancellation and Phi(a) = 1 - Phi(-a). Relative error 4.5e-7 for x > -13. -infinity
// gives NaN.
MOEBIUS_ALWAYS_INLINE float gelu_f32(float x) {
  const float a = min_f32(abs_f32(x), 20.0f);
  const float half = 0.5f * a;
  const float square = half * a;
  const float t = 1.0f / fma_f32(a, 0.282842712f, 1.0f);  // 0.4 / sqrt 2
  const float tail = 0.5f * numeric_detail::erfc_from(t, square, fma_f32(half, a, -square));
  return x * select_f32(x < 0.0f, tail, 1.0f - tail);
}

// Returns 0.5 * x * (1 + tanh(v)), v = 0.7978845608 * (x + 0.044715 x^3), computed as x * sigmoid(2
// v): the same function without the cancellation for negative x. Order: cube = (x * x) * x; inner =
// fma(0.044715, cube, x); x * sigmoid(1.5957691216 * inner). Relative error 1.2e-6 for x > -4;
// below, absolute error 1e-9 (limited by the f32 argument of the exponential).
MOEBIUS_ALWAYS_INLINE float gelu_tanh_f32(float x) {
  const float cube = (x * x) * x;
  return x * sigmoid_factor_f32(1.59576912f * fma_f32(0.044715f, cube, x));
}

// Returns log(1 + e^x), and x itself above 20. Computed as log(u) + rest / u, where u + rest = 1 +
// e exactly and e = e^x. Relative error 1.7e-7.
MOEBIUS_ALWAYS_INLINE float softplus_f32(float x) {
  const float e = exp_f32(min_f32(x, 20.0f));
  const float u = 1.0f + e;
  const float seen = u - 1.0f;
  const float rest = (1.0f - (u - seen)) + (e - seen);
  return select_f32(x > 20.0f, x, log_f32(u) + rest / u);
}

// Returns the router score sqrt(softplus(x)); the square root is correctly rounded on every
// machine.
MOEBIUS_ALWAYS_INLINE float sqrtsoftplus_f32(float x) { return __builtin_sqrtf(softplus_f32(x)); }

// Returns max(x, 0)^2.
MOEBIUS_ALWAYS_INLINE float relu2_f32(float x) {
  const float v = max_f32(x, 0.0f);
  return v * v;
}

// ---- gated activations: f(g) * u for gate value g and up value u; f(g) is rounded before the
// product ----

MOEBIUS_ALWAYS_INLINE float silu_and_mul(float g, float u) { return silu_f32(g) * u; }
MOEBIUS_ALWAYS_INLINE float gelu_and_mul(float g, float u) { return gelu_f32(g) * u; }
MOEBIUS_ALWAYS_INLINE float gelu_tanh_and_mul(float g, float u) { return gelu_tanh_f32(g) * u; }

// Returns silu(min(g, limit)) * clamp(u, -limit, limit).
MOEBIUS_ALWAYS_INLINE float silu_limit_and_mul(float g, float u, float limit) {
  return silu_f32(min_f32(g, limit)) * clamp_f32(u, -limit, limit);
}

// Returns (g' * sigmoid(alpha * g')) * (u' + beta) with g' = min(g, limit) and u' = clamp(u,
// -limit, limit). GPT-OSS has 1.702, 7, 1.
MOEBIUS_ALWAYS_INLINE float swigluoai(float g, float u, float alpha = 1.702f, float limit = 7.0f,
                                      float beta = 1.0f) {
  const float gate = min_f32(g, limit);
  const float up = clamp_f32(u, -limit, limit) + beta;
  return (gate * sigmoid_factor_f32(alpha * gate)) * up;
}

// Returns min(silu(g), limit) * clamp(u, -limit, limit).
MOEBIUS_ALWAYS_INLINE float swiglustep(float g, float u, float limit = 7.0f) {
  return min_f32(silu_f32(g), limit) * clamp_f32(u, -limit, limit);
}

// Returns ((b * tanh(g / b)) * sigmoid(g)) * u.
MOEBIUS_ALWAYS_INLINE float situ(float g, float u, float b) {
  return (cap_f32(g, b) * sigmoid_f32(g)) * u;
}
// Returns situ(g, lb * tanh(u / lb), b).
MOEBIUS_ALWAYS_INLINE float situ(float g, float u, float b, float lb) {
  return situ(g, cap_f32(u, lb), b);
}

}  // namespace moebius
