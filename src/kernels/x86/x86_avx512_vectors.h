// SPDX-License-Identifier: Apache-2.0
// Vectors of 512 bits for x86_int8_few.h: VPDPBUSD adds 4 products of an unsigned and a signed byte
// to each of 16 sums. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
// Intrinsics of g++ 12 start from a vector that is "undefined" on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include "kernels/x86/x86_int8_few.h"

namespace moebius {
namespace {

struct Zmm {
  using V = __m512i;
  using F = __m512;
  static constexpr size_t kLanes = 16;
  static constexpr size_t kRows = 6;
  static constexpr size_t kManyPanels = 4;  // number of panels at once: 24 sums for 6 rows
  template <int R>
  static constexpr int panels() {
    return R <= 2 ? 4 : 2;  // 4 streams read memory faster
  }
  template <x86_int8::Codes kCodes>
  static constexpr int32_t bias() {
    return kCodes == x86_int8::Codes::kNibbles ? 8 : kCodes == x86_int8::Codes::kBytes ? 128 : 12;
  }
  [[gnu::always_inline]] static inline V load(const uint8_t* p) { return _mm512_loadu_si512(p); }
  [[gnu::always_inline]] static inline V set1(int32_t v) { return _mm512_set1_epi32(v); }
  [[gnu::always_inline]] static inline F set1(float v) { return _mm512_set1_ps(v); }
  [[gnu::always_inline]] static inline F zero_f32() { return _mm512_setzero_ps(); }
  [[gnu::always_inline]] static inline V add(V a, V b) { return _mm512_add_epi32(a, b); }
  [[gnu::always_inline]] static inline V sub(V a, V b) { return _mm512_sub_epi32(a, b); }
  [[gnu::always_inline]] static inline V mul(V a, V b) { return _mm512_mullo_epi32(a, b); }
  [[gnu::always_inline]] static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  [[gnu::always_inline]] static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
  [[gnu::always_inline]] static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
  [[gnu::always_inline]] static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
  [[gnu::always_inline]] static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  [[gnu::always_inline]] static inline F to_f32(V v) { return _mm512_cvtepi32_ps(v); }
  [[gnu::always_inline]] static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  [[gnu::always_inline]] static inline F bits(V v) { return _mm512_castsi512_ps(v); }
  [[gnu::always_inline]] static inline F load_f32(const uint8_t* p) { return _mm512_loadu_ps(p); }
  [[gnu::always_inline]] static inline void store(float* y, F f) { _mm512_storeu_ps(y, f); }
  [[gnu::always_inline]] static inline void store(uint8_t* to, V v) { _mm512_storeu_si512(to, v); }
  [[gnu::always_inline]] static inline F from_bf16(const uint8_t* p) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(v), 16));
  }
  [[gnu::always_inline]] static inline F from_f16(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  [[gnu::always_inline]] static inline V from_int8(const uint8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  // Loads 16 inputs of 16 outputs as unsigned bytes, 4 inputs per operand.
  template <x86_int8::Codes kCodes>
  [[gnu::always_inline]] static inline void operands(const uint8_t* w, V (&b)[4]) {
    if constexpr (kCodes == x86_int8::Codes::kBytes) {
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[i] =
          _mm512_xor_si512(_mm512_load_si512(w + 64 * i), _mm512_set1_epi8(-128));
    } else {
      const V low = _mm512_set1_epi8(15);
      MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) {
        const V v = _mm512_load_si512(w + 64 * i);
        b[2 * i] = _mm512_and_si512(v, low);
        b[2 * i + 1] = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
      }
      if constexpr (kCodes == x86_int8::Codes::kFp4) {
        const V table = _mm512_broadcast_i32x4(
            _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
        MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[i] = _mm512_shuffle_epi8(table, b[i]);
      }
    }
  }
  template <x86_int8::Codes, int kApart>
  [[gnu::always_inline]] static inline void dot(V& sum, const V (&b)[4], const uint8_t* x) {
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
      int32_t four;
      __builtin_memcpy(&four, x + kApart * i, 4);
      sum = _mm512_dpbusd_epi32(sum, b[i], _mm512_set1_epi32(four));
    }
  }
  // Multiplies 16 inputs of R rows with N panels of operands that are `apart` bytes apart.
  template <x86_int8::Codes, int R, size_t N>
  [[gnu::always_inline]] static inline void dots(V (&sum)[R][N], const uint8_t* w, size_t apart,
                                                 const uint8_t* x) {
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
      V b[N];
      MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) b[v] =
          _mm512_load_si512(w + v * apart + 64 * i);
      MOEBIUS_UNROLL for (int r = 0; r < R; ++r) {
        int32_t four;
        __builtin_memcpy(&four, x + 4 * (R * i + r), 4);
        const V by = _mm512_set1_epi32(four);
        MOEBIUS_UNROLL for (size_t v = 0; v < N; ++v) sum[r][v] =
            _mm512_dpbusd_epi32(sum[r][v], b[v], by);
      }
    }
  }
};

}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
