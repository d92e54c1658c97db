// SPDX-License-Identifier: Apache-2.0
// Array forms of base/numeric.h and base/math_functions.h. Most are one plain loop over the scalar
// definition, which the compiler vectorises (this file is built with -O3); those that layers spend
// time in work on blocks of vectors. No lane does anything the scalar function does not, so results
// are equal bit for bit whatever the length and alignment.
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

// Four numbers at once: what compilers do not make of loops whose lanes go on from iteration to
// iteration, or that choose.
using Four = float __attribute__((vector_size(16)));
using FourBits = uint32_t __attribute__((vector_size(16)));
MOEBIUS_ALWAYS_INLINE Four four(float v) { return Four{v, v, v, v}; }
MOEBIUS_ALWAYS_INLINE Four load_four(const float* p) {
  Four v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}
MOEBIUS_ALWAYS_INLINE void store_four(float* p, Four v) { __builtin_memcpy(p, &v, sizeof v); }
MOEBIUS_ALWAYS_INLINE FourBits bits_of(Four v) { return reinterpret_cast<FourBits>(v); }
MOEBIUS_ALWAYS_INLINE Four from_bits(FourBits v) { return reinterpret_cast<Four>(v); }
// a * b + c and c - a * b, rounded once. As instructions: g++ makes copies around a loop over
// lanes.
MOEBIUS_ALWAYS_INLINE Four fma_four(Four a, Four b, Four c) {
#ifdef __aarch64__
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
#else
  for (int i = 0; i < 4; ++i) c[i] = fma_f32(a[i], b[i], c[i]);
#endif
  return c;
}
MOEBIUS_ALWAYS_INLINE Four fms_four(Four a, Four b, Four c) {
#ifdef __aarch64__
  asm("fmls %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
#else
  return fma_four(-a, b, c);
#endif
}

// b where it is larger, NaN where either is.
MOEBIUS_ALWAYS_INLINE Four larger_or_nan(Four a, Four b) {
#ifdef __aarch64__
  Four v;  // one operation where the lines below make five
  asm("fmax %0.4s, %1.4s, %2.4s" : "=w"(v) : "w"(a), "w"(b));
  return v;
#else
  const auto take = (b > a) | (b != b);
  return take ? b : a;
#endif
}

// b where it is smaller; NaN gives anything.
MOEBIUS_ALWAYS_INLINE Four at_most(Four a, float b) {
#ifdef __aarch64__
  Four v;
  asm("fmin %0.4s, %1.4s, %2.4s" : "=w"(v) : "w"(a), "w"(four(b)));
  return v;
#else
  return a < b ? a : four(b);
#endif
}

// The addend of a fused multiply-add on Arm is overwritten, and the copy of a constant competes
// with the products for a pipe; loading it anew does not, and leaves its register to the numbers.
enum Addend : int {
  kAddMagic64,
  kAddMagic,
  kAdd5,
  kAdd4,
  kAdd3,
  kAdd2,
  kAddOne,
  kAddCoarse3,
  kAddCoarse2
};
constexpr float kMagic = 12582912.0f, kCoarse4 = 0.0412775725f, kCoarse3 = 0.167535484f,
                kCoarse2 = 0.5000512f;
constexpr float kAddends[] = {numeric_detail::kExpMagic64,
                              kMagic,
                              numeric_detail::kExp5,
                              numeric_detail::kExp4,
                              numeric_detail::kExp3,
                              numeric_detail::kExp2,
                              1.0f,
                              kCoarse3,
                              kCoarse2};
template <int i>
MOEBIUS_ALWAYS_INLINE Four addend() {
#ifdef __aarch64__
  alignas(16) static constexpr float kVector[4] = {kAddends[i], kAddends[i], kAddends[i],
                                                   kAddends[i]};
  Four v;
  asm volatile("ldr %q0, %1" : "=w"(v) : "m"(kVector));
  return v;
#else
  return four(kAddends[i]);
#endif
}

// e^-q (exp_nonpositive_f32) of 4 N numbers, one operation of the definition after the other over
// all of them: the latencies of a chain of 15 operations overlap, which the order "one vector after
// the other" leaves to a reorder window too short for it. Changing the sign of r and of every
// second step changes no bit. silu: 14.4 cycles for 4 numbers with N = 4 and copied constants, 12.3
// with loaded ones, 10.1 with N = 8.
constexpr size_t kFours = 4, kBlock = 4 * kFours, kManyFours = 8, kManyBlock = 4 * kManyFours;
#define MOEBIUS_EACH for (size_t j = 0; j < kFours; ++j)
#define MOEBIUS_EACH_OF(N) _Pragma("GCC unroll 8") for (size_t j = 0; j < (N); ++j)
template <size_t N>
MOEBIUS_ALWAYS_INLINE void exp_block(Four (&q)[N], Four (&p)[N]) {
  using namespace numeric_detail;
  Four t[N], n[N];
  MOEBIUS_EACH_OF(N) q[j] = at_most(q[j], 104.0f);
  MOEBIUS_EACH_OF(N) t[j] = fms_four(q[j], four(kLog2E), addend<kAddMagic64>());
  MOEBIUS_EACH_OF(N) n[j] = t[j] - kExpMagic64;
  MOEBIUS_EACH_OF(N) q[j] = fms_four(n[j], four(kMinusLn2High), q[j]);
  MOEBIUS_EACH_OF(N) q[j] = fms_four(n[j], four(kMinusLn2Low), q[j]);
  MOEBIUS_EACH_OF(N) p[j] = fms_four(four(kExp6), q[j], addend<kAdd5>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], addend<kAdd4>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], addend<kAdd3>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], addend<kAdd2>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], addend<kAddOne>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], addend<kAddOne>());
  MOEBIUS_EACH_OF(N) p[j] = from_bits(bits_of(p[j]) + (bits_of(t[j]) << 23));
  MOEBIUS_EACH_OF(N) p[j] = p[j] * kExpMinus64;
}
// Rounds 16 numbers to bf16. NaN, which has bits to keep, is rare enough for a branch.
MOEBIUS_ALWAYS_INLINE void round_block(Four (&v)[kFours]) {
  FourBits u[kFours], number[kFours];
  MOEBIUS_EACH number[j] = reinterpret_cast<FourBits>(v[j] == v[j]);
  MOEBIUS_EACH u[j] = bits_of(v[j]);
  MOEBIUS_EACH u[j] = (u[j] + 0x7FFFu + (u[j] >> 16 & 1u)) & 0xFFFF0000u;
  const FourBits all = (number[0] & number[1]) & (number[2] & number[3]);
  using Two = uint64_t __attribute__((vector_size(16)));
  const Two halves = reinterpret_cast<Two>(all);
  if (__builtin_expect((halves[0] & halves[1]) != ~uint64_t{0}, 0))
    MOEBIUS_EACH u[j] =
        (number[j] & u[j]) | (~number[j] & ((bits_of(v[j]) & 0xFFFF0000u) | 0x400000u));
  MOEBIUS_EACH v[j] = from_bits(u[j]);
}
template <size_t N>
MOEBIUS_ALWAYS_INLINE void silu_and_mul_block(const float* g, const float* u, float* y) {
  Four q[N], p[N];
  MOEBIUS_EACH_OF(N) q[j] = from_bits(bits_of(load_four(g + 4 * j)) & 0x7FFFFFFFu);
  exp_block(q, p);
  MOEBIUS_EACH_OF(N) p[j] = (load_four(g + 4 * j) < 0.0f ? p[j] : four(1.0f)) / (1.0f + p[j]);
  MOEBIUS_EACH_OF(N) p[j] = (load_four(g + 4 * j) * p[j]) * load_four(u + 4 * j);
  MOEBIUS_EACH_OF(N) store_four(y + 4 * j, p[j]);
}
template <size_t N>
MOEBIUS_ALWAYS_INLINE void exp_minus_block(const float* x, float scale, float top, float* y) {
  Four q[N], p[N];
  const auto below = [&](size_t j) { return top - load_four(x + 4 * j) * scale; };
  MOEBIUS_EACH_OF(N) q[j] = below(j);
  exp_block(q, p);
  MOEBIUS_EACH_OF(N) p[j] = below(j) >= 0.0f ? p[j] : -below(j);
  MOEBIUS_EACH_OF(N) store_four(y + 4 * j, p[j]);
}
// A polynomial of degree 4: e^r within 5.4e-6. Exponents below -126 are not made, their numbers are
// put to 0.
template <size_t N>
MOEBIUS_ALWAYS_INLINE void exp_minus_coarse_block(const float* x, float scale, float top,
                                                  float* y) {
  using namespace numeric_detail;
  constexpr float kMinusLn2 = -0.693147182f, kLeast = -87.0f;
  Four d[N], t[N], r[N], p[N];
  MOEBIUS_EACH_OF(N) d[j] = load_four(x + 4 * j) * scale - top;
  MOEBIUS_EACH_OF(N) t[j] = fma_four(d[j], four(kLog2E), addend<kAddMagic>());
  MOEBIUS_EACH_OF(N) r[j] = t[j] - kMagic;
  MOEBIUS_EACH_OF(N) r[j] = fma_four(r[j], four(kMinusLn2), d[j]);
  MOEBIUS_EACH_OF(N) p[j] = fma_four(four(kCoarse4), r[j], addend<kAddCoarse3>());
  MOEBIUS_EACH_OF(N) p[j] = fma_four(p[j], r[j], addend<kAddCoarse2>());
  MOEBIUS_EACH_OF(N) p[j] = fma_four(p[j], r[j], addend<kAddOne>());
  MOEBIUS_EACH_OF(N) p[j] = fma_four(p[j], r[j], addend<kAddOne>());
  MOEBIUS_EACH_OF(N) p[j] = from_bits(bits_of(p[j]) + (bits_of(t[j]) << 23));
  MOEBIUS_EACH_OF(N) p[j] = from_bits(bits_of(p[j]) & reinterpret_cast<FourBits>(d[j] >= kLeast));
  MOEBIUS_EACH_OF(N) store_four(y + 4 * j, p[j]);
}

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
void round_to_bf16(float* x, size_t n) noexcept {
  for (; n >= kBlock; n -= kBlock, x += kBlock) {
    Four v[kFours];
    MOEBIUS_EACH v[j] = load_four(x + 4 * j);
    round_block(v);
    MOEBIUS_EACH store_four(x + 4 * j, v[j]);
  }
  map(x, x, n, [](float v) { return bf16_to_f32(f32_to_bf16(v)); });
}
void scale_in_bf16(const float* x, float r, const float* w, float* y, size_t n) noexcept {
  for (; n >= kBlock; n -= kBlock, x += kBlock, w += kBlock, y += kBlock) {
    Four v[kFours];
    MOEBIUS_EACH v[j] = load_four(x + 4 * j) * r;
    round_block(v);
    MOEBIUS_EACH v[j] = v[j] * load_four(w + 4 * j);
    round_block(v);
    MOEBIUS_EACH store_four(y + 4 * j, v[j]);
  }
  map_gated(x, w, y, n, [r](float v, float weight) {
    return bf16_to_f32(f32_to_bf16(bf16_to_f32(f32_to_bf16(v * r)) * weight));
  });
}
float sum_of_squares(const float* x, size_t n) noexcept {
  Four sum[kFours] = {};
  for (; n >= kBlock; n -= kBlock, x += kBlock) MOEBIUS_EACH {
      const Four v = load_four(x + 4 * j);
      sum[j] += v * v;
    }
  for (size_t j = 0; j < n; ++j) sum[j / 4][j % 4] += x[j] * x[j];
  const Four all = (sum[0] + sum[2]) + (sum[1] + sum[3]);
  return (all[0] + all[2]) + (all[1] + all[3]);
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

float largest_of(const float* x, size_t n) noexcept {
  Four top[kFours];
  MOEBIUS_EACH top[j] = four(f32_from_bits(0xFF800000u));
  for (; n >= kBlock; n -= kBlock, x += kBlock)
    MOEBIUS_EACH top[j] = larger_or_nan(top[j], load_four(x + 4 * j));
  for (size_t j = 0; j < n; ++j) top[0] = larger_or_nan(top[0], four(x[j]));
  const Four all = larger_or_nan(larger_or_nan(top[0], top[1]), larger_or_nan(top[2], top[3]));
  const Four half = larger_or_nan(all, Four{all[2], all[3], all[0], all[1]});
  return larger_or_nan(half, four(half[1]))[0];
}
float sum_of(const float* x, size_t n) noexcept {
  Four sum[kFours] = {};
  for (; n >= kBlock; n -= kBlock, x += kBlock) MOEBIUS_EACH sum[j] += load_four(x + 4 * j);
  for (size_t j = 0; j < n; ++j) sum[j / 4][j % 4] += x[j];
  const Four all = (sum[0] + sum[1]) + (sum[2] + sum[3]);
  return (all[0] + all[2]) + (all[1] + all[3]);
}
void exp_minus(const float* x, float scale, float top, float* y, size_t n) noexcept {
  for (; n >= kManyBlock; n -= kManyBlock, x += kManyBlock, y += kManyBlock)
    exp_minus_block<kManyFours>(x, scale, top, y);
  map(x, y, n, [=](float v) { return exp_minus(v * scale, top); });
}
void exp_minus_coarse(const float* x, float scale, float top, float* y, size_t n) noexcept {
  for (; n >= kManyBlock; n -= kManyBlock, x += kManyBlock, y += kManyBlock)
    exp_minus_coarse_block<kManyFours>(x, scale, top, y);
  if (n == 0) return;
  float rest[kManyBlock] = {};
  __builtin_memcpy(rest, x, n * sizeof *x);
  exp_minus_coarse_block<kManyFours>(rest, scale, top, rest);
  __builtin_memcpy(y, rest, n * sizeof *y);
}
void silu_and_mul(const float* g, const float* u, float* y, size_t n) noexcept {
  for (; n >= kManyBlock; n -= kManyBlock, g += kManyBlock, u += kManyBlock, y += kManyBlock)
    silu_and_mul_block<kManyFours>(g, u, y);
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

#undef MOEBIUS_EACH
#undef MOEBIUS_EACH_OF

}  // namespace moebius
