// SPDX-License-Identifier: Apache-2.0
// Implements row functions in NEON, four lanes. The compiler vectorizes loops over the scalar
// definition; functions in which layers spend time work on blocks of vectors, by instructions that
// the compiler does not choose.
#include "kernels/arm/arm_exp_coarse.h"
#include "kernels/isa_products.h"
#include "kernels/isa_quantize.h"
#include "kernels/isa_search.h"

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES

using FourBits = uint32_t __attribute__((vector_size(16)));
MOEBIUS_ALWAYS_INLINE Four four(float v) { return Four{v, v, v, v}; }
MOEBIUS_ALWAYS_INLINE Four load_four(const float* p) { return load_vector<Four>(p); }
MOEBIUS_ALWAYS_INLINE void store_four(float* p, Four v) { __builtin_memcpy(p, &v, sizeof v); }
MOEBIUS_ALWAYS_INLINE FourBits bits_of(Four v) { return reinterpret_cast<FourBits>(v); }
MOEBIUS_ALWAYS_INLINE Four from_bits(FourBits v) { return reinterpret_cast<Four>(v); }
// Return a * b + c and c - a * b, rounded once. Written as asm, because g++ makes copies around a loop
// over lanes.
MOEBIUS_ALWAYS_INLINE Four fma_four(Four a, Four b, Four c) {
  asm("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
}
MOEBIUS_ALWAYS_INLINE Four fms_four(Four a, Four b, Four c) {
  asm("fmls %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
}
// Returns the smaller of a and b in each lane; anything for NaN.
MOEBIUS_ALWAYS_INLINE Four at_most(Four a, float b) {
  Four v;
  asm("fmin %0.4s, %1.4s, %2.4s" : "=w"(v) : "w"(a), "w"(four(b)));
  return v;
}

constexpr LanesOf kMagic64{numeric_detail::kExpMagic64}, k5{numeric_detail::kExp5},
    k4{numeric_detail::kExp4}, k3{numeric_detail::kExp3}, k2{numeric_detail::kExp2}, kOne{1.0f};

// Computes e^-q (exp_nonpositive_f32) of 4 N numbers, one operation of the definition after the
// other over all of them: the latencies of a chain of 15 operations overlap, which the order "one
// vector after the other" leaves to a reorder window too short for it. Changing the sign of r and
// of every second step changes no bit. silu: 14.4 cycles for 4 numbers with N = 4 and copied
// constants, 12.3 with loaded ones, 10.1 with N = 8.
constexpr size_t kFours = 4, kBlock = 4 * kFours, kManyFours = 8, kManyBlock = 4 * kManyFours;
#define MOEBIUS_EACH for (size_t j = 0; j < kFours; ++j)
template <size_t N>
MOEBIUS_ALWAYS_INLINE void exp_block(Four (&q)[N], Four (&p)[N]) {
  using namespace numeric_detail;
  Four t[N], n[N];
  MOEBIUS_EACH_OF(N) q[j] = at_most(q[j], 104.0f);
  MOEBIUS_EACH_OF(N) t[j] = fms_four(q[j], four(kLog2E), loaded<kMagic64>());
  MOEBIUS_EACH_OF(N) n[j] = t[j] - kExpMagic64;
  MOEBIUS_EACH_OF(N) q[j] = fms_four(n[j], four(kMinusLn2High), q[j]);
  MOEBIUS_EACH_OF(N) q[j] = fms_four(n[j], four(kMinusLn2Low), q[j]);
  MOEBIUS_EACH_OF(N) p[j] = fms_four(four(kExp6), q[j], loaded<k5>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], loaded<k4>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], loaded<k3>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], loaded<k2>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], loaded<kOne>());
  MOEBIUS_EACH_OF(N) p[j] = fms_four(p[j], q[j], loaded<kOne>());
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
struct Neon : RowLoops<Neon, 4>,
              QuantizeLoops<Neon>,
              ScanLoops<Neon, 4>,
              ProductLoops<Neon, 4>,
              SearchLoops<Neon, 4> {
  using Loops = RowLoops<Neon, 4>;

  MOEBIUS_ALWAYS_INLINE static Four fused(Four a, Four b, Four c) { return fma_four(a, b, c); }

  MOEBIUS_ALWAYS_INLINE static Four larger_or_nan(Four a, Four b) {
    Four v;  // one instruction instead of the five of a comparison and a choice
    asm("fmax %0.4s, %1.4s, %2.4s" : "=w"(v) : "w"(a), "w"(b));
    return v;
  }
  static void round_to_bf16(float* x, size_t n) {
    for (; n >= kBlock; n -= kBlock, x += kBlock) {
      Four v[kFours];
      MOEBIUS_EACH v[j] = load_four(x + 4 * j);
      round_block(v);
      MOEBIUS_EACH store_four(x + 4 * j, v[j]);
    }
    Loops::round_to_bf16(x, n);
  }
  static void scale_in_bf16(const float* x, float r, const float* w, float* y, size_t n) {
    for (; n >= kBlock; n -= kBlock, x += kBlock, w += kBlock, y += kBlock) {
      Four v[kFours];
      MOEBIUS_EACH v[j] = load_four(x + 4 * j) * r;
      round_block(v);
      MOEBIUS_EACH v[j] = v[j] * load_four(w + 4 * j);
      round_block(v);
      MOEBIUS_EACH store_four(y + 4 * j, v[j]);
    }
    Loops::scale_in_bf16(x, r, w, y, n);
  }
  static void exp_scaled_minus(const float* x, float scale, float top, float* y, size_t n) {
    for (; n >= kManyBlock; n -= kManyBlock, x += kManyBlock, y += kManyBlock)
      exp_minus_block<kManyFours>(x, scale, top, y);
    Loops::exp_scaled_minus(x, scale, top, y, n);
  }
  static float exp_and_sum(float* s, size_t n, float scale, float top, bool coarse) {
    if (!coarse || n % kManyBlock != 0) return Loops::exp_and_sum(s, n, scale, top, coarse);
    const CoarseConstants c(four(scale), four(top));
    Four sum[kFours] = {};
    for (; n > 0; n -= kManyBlock, s += kManyBlock) {
      Four t[kManyFours];
      exp_coarse_in_order<kManyFours>(s, c, t);
      MOEBIUS_EACH_OF(kManyFours) {
        store_four(s + 4 * j, t[j]);
        sum[j % kFours] = add_in_order(sum[j % kFours], t[j]);
      }
    }
    float lane[kSumLanes];
    __builtin_memcpy(lane, sum, sizeof sum);
    return Loops::sum_of_lanes(lane);
  }
  static void silu_and_mul(const float* g, const float* u, float* y, size_t n) {
    for (; n >= kManyBlock; n -= kManyBlock, g += kManyBlock, u += kManyBlock, y += kManyBlock)
      silu_and_mul_block<kManyFours>(g, u, y);
    Loops::silu_and_mul(g, u, y, n);
  }
};

constexpr RowFunctions kTable = row_table<Neon>("arm_neon", Arch::kAarch64, kNeon);
#else
constexpr RowFunctions kTable = {"arm_neon", Arch::kAarch64, kNeon};
#endif

}  // namespace

extern const RowFunctions kArmNeonRows;
const RowFunctions kArmNeonRows = kTable;

}  // namespace moebius
