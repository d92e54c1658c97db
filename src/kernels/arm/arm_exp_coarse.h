// SPDX-License-Identifier: Apache-2.0
// exp_coarse_f32 over many vectors in NEON: each operation of the definition runs over all vectors
// before the next one, in exactly this order (volatile). 7.0 cycles for 4 numbers, including the
// search for the largest; 7.6 in the order that g++ chooses. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <cstddef>

#include "base/math_functions.h"

#define MOEBIUS_EACH_OF(N) _Pragma("GCC unroll 8") for (size_t j = 0; j < (N); ++j)

namespace moebius {
namespace {

using Lanes = float __attribute__((vector_size(16)));

// A constant in all lanes, loaded when needed: the addend of a fused multiply-add is overwritten on
// Arm, and copying a constant would compete with products for a pipe.
struct LanesOf {
  alignas(16) float v[4];
  constexpr explicit LanesOf(float x) : v{x, x, x, x} {}
};
template <const LanesOf& kNumber>
MOEBIUS_ALWAYS_INLINE Lanes loaded() {
  Lanes v;
  asm volatile("ldr %q0, %1" : "=w"(v) : "m"(kNumber));
  return v;
}

#define MOEBIUS_IN_ORDER(name, instruction)                                      \
  MOEBIUS_ALWAYS_INLINE Lanes name(Lanes a, Lanes b) {                           \
    Lanes v;                                                                     \
    asm volatile(instruction " %0.4s, %1.4s, %2.4s" : "=w"(v) : "w"(a), "w"(b)); \
    return v;                                                                    \
  }
MOEBIUS_IN_ORDER(mul_in_order, "fmul")
MOEBIUS_IN_ORDER(add_in_order, "fadd")
MOEBIUS_IN_ORDER(sub_in_order, "fsub")
MOEBIUS_IN_ORDER(max_in_order, "fmax")
#undef MOEBIUS_IN_ORDER
MOEBIUS_ALWAYS_INLINE Lanes fma_in_order(Lanes a, Lanes b, Lanes c) {
  asm volatile("fmla %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
}
MOEBIUS_ALWAYS_INLINE Lanes fms_in_order(Lanes a, Lanes b, Lanes c) {
  asm volatile("fmls %0.4s, %1.4s, %2.4s" : "+w"(c) : "w"(a), "w"(b));
  return c;
}
MOEBIUS_ALWAYS_INLINE Lanes exponent_in_order(Lanes t) {
  Lanes v;
  asm volatile("shl %0.4s, %1.4s, #23" : "=w"(v) : "w"(t));
  return v;
}

namespace coarse {
constexpr LanesOf kMagic{numeric_detail::kExpMagic127}, kMinus3{-numeric_detail::kExpCoarse3},
    k2{numeric_detail::kExpCoarse2}, kMinus1{-numeric_detail::kExpCoarse1},
    kLeast{numeric_detail::kExpCoarseLeast};
}  // namespace coarse

struct CoarseConstants {
  Lanes scale, top, log2e, coarse4;
  CoarseConstants(Lanes scale_, Lanes top_)
      : scale(scale_),
        top(top_),
        log2e(Lanes{} + numeric_detail::kLog2E),
        coarse4(Lanes{} + numeric_detail::kExpCoarse4) {}
};

// Computes t[j] = exp_coarse(scale * s[4j ...] - top); f and q are kept with changed signs.
template <size_t N>
MOEBIUS_ALWAYS_INLINE void exp_coarse_in_order(const float* s, const CoarseConstants& c,
                                               Lanes (&t)[N]) {
  using namespace coarse;
  Lanes d[N], f[N], q[N];
  MOEBIUS_EACH_OF(N) {
    __builtin_memcpy(&d[j], s + 4 * j, sizeof d[j]);
    d[j] = mul_in_order(d[j], c.scale);
  }
  MOEBIUS_EACH_OF(N) d[j] = sub_in_order(d[j], c.top);
  MOEBIUS_EACH_OF(N) d[j] = max_in_order(d[j], loaded<kLeast>());
  MOEBIUS_EACH_OF(N) t[j] = fma_in_order(d[j], c.log2e, loaded<kMagic>());
  MOEBIUS_EACH_OF(N) f[j] = sub_in_order(t[j], loaded<kMagic>());
  MOEBIUS_EACH_OF(N) f[j] = fms_in_order(d[j], c.log2e, f[j]);
  MOEBIUS_EACH_OF(N) q[j] = fma_in_order(c.coarse4, f[j], loaded<kMinus3>());
  MOEBIUS_EACH_OF(N) q[j] = fma_in_order(q[j], f[j], loaded<k2>());
  MOEBIUS_EACH_OF(N) q[j] = fma_in_order(q[j], f[j], loaded<kMinus1>());
  MOEBIUS_EACH_OF(N) t[j] = exponent_in_order(t[j]);
  MOEBIUS_EACH_OF(N) q[j] = mul_in_order(q[j], f[j]);
  MOEBIUS_EACH_OF(N) t[j] = fma_in_order(q[j], t[j], t[j]);
}

}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
