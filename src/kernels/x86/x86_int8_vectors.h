// SPDX-License-Identifier: Apache-2.0
// Vectors of 256 and 512 bits for the int8 family (x86_int8_products.h). Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
// Intrinsics of g++ 12 start from a vector that is "undefined" on purpose.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#define MOEBIUS_INLINE [[gnu::always_inline]] static inline
// Defines the functions whose intrinsics differ in the number of bits alone. look_up: of the bytes
// of v in a table of 16; even, odd: the bytes at even and at odd places as 16-bit numbers; hold:
// makes the compiler have v in a register here.
#define MOEBIUS_X86_VECTORS(b)                                                                \
  using V = __m##b##i;                                                                        \
  using F = __m##b;                                                                           \
  static constexpr size_t kLanes = b / 32;                                                    \
  MOEBIUS_INLINE V load(const uint8_t* p) {                                                   \
    return _mm##b##_loadu_si##b(reinterpret_cast<const V*>(p));                               \
  }                                                                                           \
  MOEBIUS_INLINE void store(uint8_t* to, V v) {                                               \
    _mm##b##_storeu_si##b(reinterpret_cast<V*>(to), v);                                       \
  }                                                                                           \
  MOEBIUS_INLINE void store(float* y, F f) { _mm##b##_storeu_ps(y, f); }                      \
  MOEBIUS_INLINE V set1(int32_t v) { return _mm##b##_set1_epi32(v); }                         \
  MOEBIUS_INLINE F set1(float v) { return _mm##b##_set1_ps(v); }                              \
  MOEBIUS_INLINE F zero_f32() { return _mm##b##_setzero_ps(); }                               \
  MOEBIUS_INLINE V add(V x, V y) { return _mm##b##_add_epi32(x, y); }                         \
  MOEBIUS_INLINE V sub(V x, V y) { return _mm##b##_sub_epi32(x, y); }                         \
  MOEBIUS_INLINE V mul(V x, V y) { return _mm##b##_mullo_epi32(x, y); }                       \
  MOEBIUS_INLINE F sub(F x, F y) { return _mm##b##_sub_ps(x, y); }                            \
  MOEBIUS_INLINE F mul(F x, F y) { return _mm##b##_mul_ps(x, y); }                            \
  MOEBIUS_INLINE F div(F x, F y) { return _mm##b##_div_ps(x, y); }                            \
  MOEBIUS_INLINE F min(F x, F y) { return _mm##b##_min_ps(x, y); }                            \
  MOEBIUS_INLINE F max(F x, F y) { return _mm##b##_max_ps(x, y); }                            \
  MOEBIUS_INLINE F fma(F x, F y, F z) { return _mm##b##_fmadd_ps(x, y, z); }                  \
  MOEBIUS_INLINE F to_f32(V v) { return _mm##b##_cvtepi32_ps(v); }                            \
  MOEBIUS_INLINE F bits(V v) { return _mm##b##_castsi##b##_ps(v); }                           \
  MOEBIUS_INLINE F load_f32(const uint8_t* p) { return bits(load(p)); }                       \
  MOEBIUS_INLINE F from_bf16(const uint8_t* p) {                                              \
    return bits(_mm##b##_slli_epi32(_mm##b##_cvtepu16_epi32(half(p)), 16));                   \
  }                                                                                           \
  MOEBIUS_INLINE F from_f16(const uint8_t* p) { return _mm##b##_cvtph_ps(half(p)); }          \
  MOEBIUS_INLINE V from_int8(const uint8_t* p) { return _mm##b##_cvtepi8_epi32(quarter(p)); } \
  MOEBIUS_INLINE V flip(V x, V y) { return _mm##b##_xor_si##b(x, y); }                        \
  MOEBIUS_INLINE V low_nibbles(V v) { return _mm##b##_and_si##b(v, _mm##b##_set1_epi8(15)); } \
  MOEBIUS_INLINE V high_nibbles(V v) { return low_nibbles(_mm##b##_srli_epi16(v, 4)); }       \
  MOEBIUS_INLINE V look_up(__m128i t, V v) { return _mm##b##_shuffle_epi8(repeated(t), v); }  \
  MOEBIUS_INLINE V even(V v) { return _mm##b##_srai_epi16(_mm##b##_slli_epi16(v, 8), 8); }    \
  MOEBIUS_INLINE V odd(V v) { return _mm##b##_srai_epi16(v, 8); }                             \
  MOEBIUS_INLINE V add16(V x, V y) { return _mm##b##_add_epi16(x, y); }                       \
  MOEBIUS_INLINE V multiply_bytes(V u, V s) { return _mm##b##_maddubs_epi16(u, s); }          \
  MOEBIUS_INLINE V multiply16(V x, V y) { return _mm##b##_madd_epi16(x, y); }                 \
  MOEBIUS_INLINE V ones16() { return _mm##b##_set1_epi16(1); }                                \
  MOEBIUS_INLINE void hold(V& v) { asm("" : "+v"(v)); }

namespace moebius {
namespace {

struct Ymm {
  static constexpr size_t kRows = 4;        // most rows of a tile of few rows
  static constexpr size_t kManyPanels = 1;  // number of panels at once: 12 sums for 6 rows
  template <int R>
  static constexpr int panels() {
    return R <= 2 ? 2 : 1;
  }
  MOEBIUS_INLINE __m128i half(const uint8_t* p) {
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  }
  MOEBIUS_INLINE __m128i quarter(const uint8_t* p) {
    return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  }
  MOEBIUS_INLINE __m256i repeated(__m128i v) { return _mm256_broadcastsi128_si256(v); }
  MOEBIUS_X86_VECTORS(256)
#ifdef __AVXVNNI__
  MOEBIUS_INLINE V add_products(V sum, V u, V s) { return _mm256_dpbusd_avx_epi32(sum, u, s); }
#endif
};

#ifdef __AVX512BW__
struct Zmm {
  static constexpr size_t kRows = 6;
  static constexpr size_t kManyPanels = 4;  // 24 sums for 6 rows
  template <int R>
  static constexpr int panels() {
    return R <= 2 ? 4 : 2;  // 4 streams read memory faster
  }
  MOEBIUS_INLINE __m256i half(const uint8_t* p) { return Ymm::load(p); }
  MOEBIUS_INLINE __m128i quarter(const uint8_t* p) { return Ymm::half(p); }
  MOEBIUS_INLINE __m512i repeated(__m128i v) { return _mm512_broadcast_i32x4(v); }
  MOEBIUS_X86_VECTORS(512)
#ifdef __AVX512VNNI__
  MOEBIUS_INLINE V add_products(V sum, V u, V s) { return _mm512_dpbusd_epi32(sum, u, s); }
#endif
};
#endif

}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
