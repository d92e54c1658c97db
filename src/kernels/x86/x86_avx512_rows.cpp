// SPDX-License-Identifier: Apache-2.0
// Implements row functions in AVX-512 (F, BW, DQ, VL): a block of 16 numbers is one vector.
#include "kernels/row_functions.h"
#include "kernels/x86/x86_rows.h"

namespace moebius {
namespace {

constexpr uint32_t kNeeds = kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw;

#ifdef MOEBIUS_KERNEL_BODIES
struct Avx512 : X86Rows<Avx512, 16> {
  // Masked with all lanes: plain conversions in g++ 12's header start from a variable that it then
  // warns about.
  static constexpr __mmask16 kAll = 0xFFFF;
  static constexpr size_t kDelta = 4;

  MOEBIUS_ALWAYS_INLINE static V fused(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }

  // Converts a block; returns false, having done nothing, if it holds a NaN.
  MOEBIUS_ALWAYS_INLINE static bool half_to_float(const uint16_t* x, float* y) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x));
    const __m256i magnitude = _mm256_and_si256(h, _mm256_set1_epi16(0x7FFF));
    if (_mm256_cmpgt_epi16_mask(magnitude, _mm256_set1_epi16(0x7C00)) != 0) return false;
    _mm512_storeu_ps(y, _mm512_maskz_cvtph_ps(kAll, h));
    return true;
  }
  MOEBIUS_ALWAYS_INLINE static void float_to_half(const float* x, uint16_t* y) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y),
                        _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT));
  }
  MOEBIUS_ALWAYS_INLINE static void round_to_half(const float* x, float* y) {
    const __m256i h = _mm512_maskz_cvtps_ph(kAll, _mm512_loadu_ps(x), _MM_FROUND_TO_NEAREST_INT);
    _mm512_storeu_ps(y, _mm512_maskz_cvtph_ps(kAll, h));
  }
  MOEBIUS_ALWAYS_INLINE static U widened(const uint16_t* x) {
    return reinterpret_cast<U>(
        _mm512_maskz_cvtepu16_epi32(kAll, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x))));
  }
  MOEBIUS_ALWAYS_INLINE static void low_bytes(const U (&v)[1], int8_t* y) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y),
                     _mm512_maskz_cvtepi32_epi8(kAll, reinterpret_cast<__m512i>(v[0])));
  }
  MOEBIUS_ALWAYS_INLINE static void low_halves(const U (&v)[1], uint16_t* y) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y),
                        _mm512_maskz_cvtepi32_epi16(kAll, reinterpret_cast<__m512i>(v[0])));
  }
  MOEBIUS_ALWAYS_INLINE static uint32_t largest_lane(I v) {
    const __m256i half = _mm256_max_epi32(
        reinterpret_cast<__m256i>(__builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7)),
        reinterpret_cast<__m256i>(__builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15)));
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return static_cast<uint32_t>(_mm_cvtsi128_si32(m));
  }
  MOEBIUS_ALWAYS_INLINE static bool above(V v, float limit) {
    return _mm512_cmp_ps_mask(v, _mm512_set1_ps(limit), _CMP_GT_OQ) != 0;
  }
  MOEBIUS_ALWAYS_INLINE static uint32_t unordered(V a, V b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_UNORD_Q);
  }
};

constexpr RowFunctions kTable = row_table<Avx512>("x86_avx512", Arch::kX86_64, kNeeds);
#else
constexpr RowFunctions kTable = {"x86_avx512", Arch::kX86_64, kNeeds};
#endif

}  // namespace

extern const RowFunctions kX86Avx512Rows;
const RowFunctions kX86Avx512Rows = kTable;

}  // namespace moebius
