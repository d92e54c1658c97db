// SPDX-License-Identifier: Apache-2.0
// Implements row functions in AVX2 with FMA and F16C: a block of 16 numbers is two vectors.
#include "kernels/row_functions.h"
#include "kernels/x86/x86_rows.h"

namespace moebius {
namespace {

constexpr uint32_t kNeeds = kAvx2 | kFma | kF16c;

#ifdef MOEBIUS_KERNEL_BODIES
struct Avx2 : X86Rows<Avx2, 8> {
  static constexpr size_t kDelta = 4, kManyTokens = 2, kProductVectors = 2;

  MOEBIUS_ALWAYS_INLINE static V fused(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
  // Converts a block; returns false, having done nothing, if it holds a NaN.
  MOEBIUS_ALWAYS_INLINE static bool half_to_float(const uint16_t* x, float* y) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i magnitude = _mm256_and_si256(h, _mm256_set1_epi16(0x7FFF));
    if (_mm256_movemask_epi8(_mm256_cmpgt_epi16(magnitude, _mm256_set1_epi16(0x7C00))) != 0)
      return false;
    _mm256_storeu_ps(y, _mm256_cvtph_ps(_mm256_castsi256_si128(h)));
    _mm256_storeu_ps(y + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(h, 1)));
    return true;
  }
  MOEBIUS_ALWAYS_INLINE static void float_to_half(const float* x, uint16_t* y) {
    for (size_t i = 0; i < kBlock; i += 8)
      _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                       _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
  MOEBIUS_ALWAYS_INLINE static void round_to_half(const float* x, float* y) {
    for (size_t i = 0; i < kBlock; i += 8)
      _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm256_cvtps_ph(_mm256_loadu_ps(x + i),
                                                              _MM_FROUND_TO_NEAREST_INT)));
  }
  // Joins the halves of lanes below 2^16 in order.
  MOEBIUS_ALWAYS_INLINE static __m256i halves(U a, U b) {
    const __m256i packed =
        _mm256_packus_epi32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b));
    // The instruction packs each half of the registers separately.
    return _mm256_permute4x64_epi64(packed, 0xD8);
  }
  MOEBIUS_ALWAYS_INLINE static void low_halves(const U (&v)[2], uint16_t* y) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y), halves(v[0], v[1]));
  }
  MOEBIUS_ALWAYS_INLINE static U widened(const uint16_t* x) {
    return reinterpret_cast<U>(
        _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x))));
  }
  MOEBIUS_ALWAYS_INLINE static void low_bytes(const U (&v)[2], int8_t* y) {
    const __m256i ordered = halves(v[0] & 0xFFu, v[1] & 0xFFu);
    _mm_storeu_si128(
        reinterpret_cast<__m128i*>(y),
        _mm_packus_epi16(_mm256_castsi256_si128(ordered), _mm256_extracti128_si256(ordered, 1)));
  }
  MOEBIUS_ALWAYS_INLINE static uint32_t largest_lane(I v) {
    const auto all = reinterpret_cast<__m256i>(v);
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(all), _mm256_extracti128_si256(all, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
  }
  MOEBIUS_ALWAYS_INLINE static bool above(V v, float limit) {
    return _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(limit), _CMP_GT_OQ)) != 0;
  }
  MOEBIUS_ALWAYS_INLINE static uint32_t unordered(V a, V b) {
    return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_UNORD_Q)));
  }
};

constexpr RowFunctions kTable = row_table<Avx2>("x86_avx2", Arch::kX86_64, kNeeds);
#else
constexpr RowFunctions kTable = {"x86_avx2", Arch::kX86_64, kNeeds};
#endif

}  // namespace

extern const RowFunctions kX86Avx2Rows;
const RowFunctions kX86Avx2Rows = kTable;

}  // namespace moebius
