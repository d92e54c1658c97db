// SPDX-License-Identifier: Apache-2.0
// Gives the packers of both x86-64 families their loop over panels (isa_packing.h). Uses nothing
// beyond AVX2; internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>

#include "kernels/isa_packing.h"

namespace moebius {
namespace {
namespace x86_packing {

using isa_packing::Ahead;

struct Bytes16 {
  using V = __m128i;
  static V load(const uint8_t* p) { return _mm_loadu_si128(reinterpret_cast<const V*>(p)); }
  static void store(uint8_t* p, V v) { _mm_storeu_si128(reinterpret_cast<V*>(p), v); }
  [[gnu::always_inline]] static void store_all(uint8_t* p, const V (&v)[16]) {
    _Pragma("GCC unroll 16") for (size_t i = 0; i < 16; ++i) store(p + 16 * i, v[i]);
  }
  static V zip1(V a, V b) { return _mm_unpacklo_epi8(a, b); }
  static V zip2(V a, V b) { return _mm_unpackhi_epi8(a, b); }
  static V low(V a, V b) { return either(a, _mm_slli_epi16(b, 4)); }
  static V high(V a, V b) { return either(_mm_srli_epi16(a, 4), b); }

 private:
  // Combines the lower halves of the bytes of a and the upper halves of those of b.
  static V either(V a, V b) {
    const V lower = _mm_set1_epi8(15);
    return _mm_or_si128(_mm_and_si128(lower, a), _mm_andnot_si128(lower, b));
  }
};

// Packs all panels of `a` (isa_packing.h).
template <class Packer, class Shape>
inline void pack_panels(const PackArgs& a, const Shape& s, size_t outputs, size_t step,
                        size_t stride) {
  isa_packing::pack_panels<Packer, Bytes16>(a, s, outputs, step, stride);
}

}  // namespace x86_packing
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
