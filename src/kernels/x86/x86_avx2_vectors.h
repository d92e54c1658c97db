// SPDX-License-Identifier: Apache-2.0
// Vectors of 256 bits for x86_int8_few.h, without the dot product, in which x86_avxvnni and
// x86_avx2 differ. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include "kernels/x86/x86_int8_few.h"

namespace moebius {
namespace {

struct Ymm {
  using V = __m256i;
  using F = __m256;
  static constexpr size_t kLanes = 8;
  static constexpr size_t kRows = 4;
  static constexpr size_t kManyPanels = 1;  // number of panels at once: 12 sums for 6 rows
  template <int R>
  static constexpr int panels() {
    return R <= 2 ? 2 : 1;
  }
  [[gnu::always_inline]] static inline V load(const uint8_t* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  [[gnu::always_inline]] static inline V set1(int32_t v) { return _mm256_set1_epi32(v); }
  [[gnu::always_inline]] static inline F set1(float v) { return _mm256_set1_ps(v); }
  [[gnu::always_inline]] static inline F zero_f32() { return _mm256_setzero_ps(); }
  [[gnu::always_inline]] static inline V add(V a, V b) { return _mm256_add_epi32(a, b); }
  [[gnu::always_inline]] static inline V sub(V a, V b) { return _mm256_sub_epi32(a, b); }
  [[gnu::always_inline]] static inline V mul(V a, V b) { return _mm256_mullo_epi32(a, b); }
  [[gnu::always_inline]] static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  [[gnu::always_inline]] static inline F div(F a, F b) { return _mm256_div_ps(a, b); }
  [[gnu::always_inline]] static inline F min(F a, F b) { return _mm256_min_ps(a, b); }
  [[gnu::always_inline]] static inline F max(F a, F b) { return _mm256_max_ps(a, b); }
  [[gnu::always_inline]] static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  [[gnu::always_inline]] static inline F to_f32(V v) { return _mm256_cvtepi32_ps(v); }
  [[gnu::always_inline]] static inline F sub(F a, F b) { return _mm256_sub_ps(a, b); }
  [[gnu::always_inline]] static inline F bits(V v) { return _mm256_castsi256_ps(v); }
  [[gnu::always_inline]] static inline F load_f32(const uint8_t* p) {
    return _mm256_castsi256_ps(load(p));
  }
  [[gnu::always_inline]] static inline void store(float* y, F f) { _mm256_storeu_ps(y, f); }
  [[gnu::always_inline]] static inline void store(uint8_t* to, V v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v);
  }
  [[gnu::always_inline]] static inline __m128i half(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  [[gnu::always_inline]] static inline F from_bf16(const uint8_t* p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half(p)), 16));
  }
  [[gnu::always_inline]] static inline F from_f16(const uint8_t* p) {
    return _mm256_cvtph_ps(half(p));
  }
  [[gnu::always_inline]] static inline V from_int8(const uint8_t* p) {
    return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  }
  // Broadcasts 4 inputs of one row of x.
  [[gnu::always_inline]] static inline V four(const uint8_t* x) {
    int32_t v;
    __builtin_memcpy(&v, x, 4);
    return _mm256_set1_epi32(v);
  }
  // Loads 16 inputs of 8 outputs as bytes XORed with `flip`, 4 inputs per operand.
  [[gnu::always_inline]] static inline void bytes(const uint8_t* w, V flip, V (&b)[4]) {
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[i] = _mm256_xor_si256(load(w + 64 * i), flip);
  }
  template <x86_int8::Codes kCodes>
  [[gnu::always_inline]] static inline void nibbles(const uint8_t* w, V (&b)[4]) {
    const V low = _mm256_set1_epi8(15);
    MOEBIUS_UNROLL for (int i = 0; i < 2; ++i) {
      const V v = load(w + 64 * i);
      b[2 * i] = _mm256_and_si256(v, low);
      b[2 * i + 1] = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    }
    if constexpr (kCodes == x86_int8::Codes::kFp4) {
      const V table = _mm256_broadcastsi128_si256(
          _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0));
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) b[i] = _mm256_shuffle_epi8(table, b[i]);
    }
  }
};

}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
