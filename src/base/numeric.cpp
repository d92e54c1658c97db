// SPDX-License-Identifier: Apache-2.0
// Array forms of base/numeric.h and base/math_functions.h: one plain loop each over the scalar
// definition. The compiler vectorises them (this file is built with -O3); no lane does anything the
// scalar function does not, so results are equal bit for bit whatever the length and alignment.
#include "base/numeric.h"

#include "base/math_functions.h"

namespace moebius {
namespace {

template <class From, class To, class F>
MOEBIUS_ALWAYS_INLINE void map(const From* src, To* dst, size_t n, F f) {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) dst[i] = f(src[i]);
}

template <class F>
MOEBIUS_ALWAYS_INLINE void map_gated(const float* g, const float* u, float* y, size_t n, F f) {
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t i = 0; i < n; ++i) y[i] = f(g[i], u[i]);
}

// exp_nonpositive_f32 of 16 numbers, one operation of the definition after the other over all of them: the latencies of a chain
// of 15 operations overlap, which the order "one vector after the other" leaves to a reorder window too short for it.
constexpr size_t kBlock = 16;
#define MOEBIUS_EACH for (size_t j = 0; j < kBlock; ++j)
MOEBIUS_ALWAYS_INLINE void exp_block(float (&r)[kBlock], float (&p)[kBlock]) {
  using namespace numeric_detail;
  float t[kBlock], n[kBlock];
  MOEBIUS_EACH r[j] = select_f32(r[j] < -104.0f, -104.0f, r[j]);
  MOEBIUS_EACH t[j] = fma_f32(r[j], kLog2E, kExpMagic64);
  MOEBIUS_EACH n[j] = t[j] - kExpMagic64;
  MOEBIUS_EACH r[j] = fma_f32(n[j], kMinusLn2High, r[j]);
  MOEBIUS_EACH r[j] = fma_f32(n[j], kMinusLn2Low, r[j]);
  MOEBIUS_EACH p[j] = fma_f32(kExp6, r[j], kExp5);
  MOEBIUS_EACH p[j] = fma_f32(p[j], r[j], kExp4);
  MOEBIUS_EACH p[j] = fma_f32(p[j], r[j], kExp3);
  MOEBIUS_EACH p[j] = fma_f32(p[j], r[j], kExp2);
  MOEBIUS_EACH p[j] = fma_f32(p[j], r[j], 1.0f);
  MOEBIUS_EACH p[j] = fma_f32(p[j], r[j], 1.0f);
  MOEBIUS_EACH p[j] = f32_from_bits(f32_bits(p[j]) + (f32_bits(t[j]) << 23));
  MOEBIUS_EACH p[j] = p[j] * kExpMinus64;
}
MOEBIUS_ALWAYS_INLINE void silu_and_mul_block(const float* g, const float* u, float* y) {
  float x[kBlock], r[kBlock], t[kBlock], p[kBlock];
  MOEBIUS_EACH x[j] = g[j];
  MOEBIUS_EACH r[j] = f32_from_bits(f32_bits(x[j]) | 0x80000000u);
  exp_block(r, p);
  MOEBIUS_EACH t[j] = 1.0f + p[j];
  MOEBIUS_EACH p[j] = select_f32(x[j] < 0.0f, p[j], 1.0f) / t[j];
  MOEBIUS_EACH t[j] = u[j];
  MOEBIUS_EACH p[j] = (x[j] * p[j]) * t[j];
  MOEBIUS_EACH y[j] = p[j];
}
MOEBIUS_ALWAYS_INLINE void exp_minus_block(const float* x, float top, float* y) {
  float d[kBlock], r[kBlock], p[kBlock];
  MOEBIUS_EACH d[j] = x[j] - top;
  MOEBIUS_EACH r[j] = d[j];
  exp_block(r, p);
  MOEBIUS_EACH p[j] = select_f32(d[j] <= 0.0f, p[j], d[j]);
  MOEBIUS_EACH y[j] = p[j];
}
#undef MOEBIUS_EACH

}  // namespace

void bf16_to_f32(const uint16_t* src, float* dst, size_t n) noexcept {
  map(src, dst, n, [](uint16_t v) { return bf16_to_f32(v); });
}
void f16_to_f32(const uint16_t* src, float* dst, size_t n) noexcept {
  map(src, dst, n, [](uint16_t v) { return f16_to_f32(v); });
}
void e4m3_to_f32(const uint8_t* src, float* dst, size_t n) noexcept {
  map(src, dst, n, [](uint8_t v) { return e4m3_to_f32(v); });
}
void e5m2_to_f32(const uint8_t* src, float* dst, size_t n) noexcept {
  map(src, dst, n, [](uint8_t v) { return e5m2_to_f32(v); });
}
void e4m3fnuz_to_f32(const uint8_t* src, float* dst, size_t n) noexcept {
  map(src, dst, n, [](uint8_t v) { return e4m3fnuz_to_f32(v); });
}
void e5m2fnuz_to_f32(const uint8_t* src, float* dst, size_t n) noexcept {
  map(src, dst, n, [](uint8_t v) { return e5m2fnuz_to_f32(v); });
}
void e8m0_to_f32(const uint8_t* src, float* dst, size_t n) noexcept {
  map(src, dst, n, [](uint8_t v) { return e8m0_to_f32(v); });
}
void f32_to_bf16(const float* src, uint16_t* dst, size_t n) noexcept {
  map(src, dst, n, [](float v) { return f32_to_bf16(v); });
}
void f32_to_f16(const float* src, uint16_t* dst, size_t n) noexcept {
  map(src, dst, n, [](float v) { return f32_to_f16(v); });
}
void f32_to_e4m3(const float* src, uint8_t* dst, size_t n) noexcept {
  map(src, dst, n, [](float v) { return f32_to_e4m3(v); });
}

void e2m1_pairs_to_f32(const uint8_t* src, float* dst, size_t n) noexcept {
  const size_t pairs = n / 2;
  MOEBIUS_INDEPENDENT_LOOP
  for (size_t j = 0; j < pairs; ++j) {
    dst[2 * j] = e2m1_to_f32(src[j]);
    dst[2 * j + 1] = e2m1_to_f32(static_cast<unsigned>(src[j]) >> 4);
  }
  if (n % 2 != 0) dst[n - 1] = e2m1_to_f32(src[pairs]);
}

void exp_f32(const float* x, float* y, size_t n) noexcept {
  map(x, y, n, [](float v) { return exp_f32(v); });
}
void sigmoid_f32(const float* x, float* y, size_t n) noexcept {
  map(x, y, n, [](float v) { return sigmoid_f32(v); });
}
void silu_f32(const float* x, float* y, size_t n) noexcept {
  map(x, y, n, [](float v) { return silu_f32(v); });
}
void tanh_f32(const float* x, float* y, size_t n) noexcept {
  map(x, y, n, [](float v) { return tanh_f32(v); });
}
void gelu_f32(const float* x, float* y, size_t n) noexcept {
  map(x, y, n, [](float v) { return gelu_f32(v); });
}
void gelu_tanh_f32(const float* x, float* y, size_t n) noexcept {
  map(x, y, n, [](float v) { return gelu_tanh_f32(v); });
}
void relu2_f32(const float* x, float* y, size_t n) noexcept {
  map(x, y, n, [](float v) { return relu2_f32(v); });
}

void exp_minus(const float* x, float top, float* y, size_t n) noexcept {
  for (; n >= kBlock; n -= kBlock, x += kBlock, y += kBlock) exp_minus_block(x, top, y);
  map(x, y, n, [=](float v) { return exp_minus(v, top); });
}
void silu_and_mul(const float* g, const float* u, float* y, size_t n) noexcept {
  for (; n >= kBlock; n -= kBlock, g += kBlock, u += kBlock, y += kBlock)
    silu_and_mul_block(g, u, y);
  map_gated(g, u, y, n, [](float gate, float up) { return silu_and_mul(gate, up); });
}
void gelu_and_mul(const float* g, const float* u, float* y, size_t n) noexcept {
  map_gated(g, u, y, n, [](float gate, float up) { return gelu_and_mul(gate, up); });
}
void gelu_tanh_and_mul(const float* g, const float* u, float* y, size_t n) noexcept {
  map_gated(g, u, y, n, [](float gate, float up) { return gelu_tanh_and_mul(gate, up); });
}
void silu_limit_and_mul(const float* g, const float* u, float* y, size_t n, float limit) noexcept {
  map_gated(g, u, y, n, [=](float gate, float up) { return silu_limit_and_mul(gate, up, limit); });
}
void swigluoai(const float* g, const float* u, float* y, size_t n, float alpha, float limit,
               float beta) noexcept {
  map_gated(g, u, y, n,
            [=](float gate, float up) { return swigluoai(gate, up, alpha, limit, beta); });
}
void swiglustep(const float* g, const float* u, float* y, size_t n, float limit) noexcept {
  map_gated(g, u, y, n, [=](float gate, float up) { return swiglustep(gate, up, limit); });
}
void situ(const float* g, const float* u, float* y, size_t n, float b) noexcept {
  map_gated(g, u, y, n, [=](float gate, float up) { return situ(gate, up, b); });
}
void situ(const float* g, const float* u, float* y, size_t n, float b, float lb) noexcept {
  map_gated(g, u, y, n, [=](float gate, float up) { return situ(gate, up, b, lb); });
}

}  // namespace moebius
