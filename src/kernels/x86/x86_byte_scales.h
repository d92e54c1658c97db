// SPDX-License-Identifier: Apache-2.0
// Packing on x86-64: converts scales of one byte (e4m3, e8m0) to bf16, exactly, with those of 16
// outputs side by side. Uses nothing beyond AVX2; internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>

#include "kernels/isa_scale_tables.h"
#include "kernels/x86/x86_packing.h"

namespace moebius {
namespace {
namespace byte_scales {

using namespace scale_tables;

constexpr size_t kRows = 16, kGroups = 16;  // rows and groups that are converted at a time

inline __m256i where(__m256i mask, __m256i yes, __m256i no) {
  return _mm256_blendv_epi8(no, yes, mask);
}
inline __m256i bf16_of_e8m0(__m128i codes) {
  const __m256i c = _mm256_cvtepu8_epi16(codes);
  const __m256i least = _mm256_cmpeq_epi16(c, _mm256_setzero_si256()),  // code 0 is 2^-127
      nan = _mm256_cmpeq_epi16(c, _mm256_set1_epi16(255));
  return where(
      nan, _mm256_set1_epi16(static_cast<short>(kE8m0.bf16[255])),
      where(least, _mm256_set1_epi16(static_cast<short>(kE8m0.bf16[0])), _mm256_slli_epi16(c, 7)));
}
inline __m256i bf16_of_e4m3(__m128i codes) {
  const __m256i c = _mm256_cvtepu8_epi16(codes), size = _mm256_and_si256(c, _mm256_set1_epi16(127));
  const __m256i normal = _mm256_add_epi16(_mm256_slli_epi16(size, 4), _mm256_set1_epi16(0x3C00));
  // The first eight codes are subnormal: their bytes are 2 * size and 2 * size + 1 of the table.
  const __m256i table =
      _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kE4m3.bf16)));
  const __m256i at = _mm256_add_epi16(_mm256_mullo_epi16(size, _mm256_set1_epi16(0x0202)),
                                      _mm256_set1_epi16(0x0100));
  const __m256i small = _mm256_cmpgt_epi16(_mm256_set1_epi16(8), size),
                nan = _mm256_cmpeq_epi16(size, _mm256_set1_epi16(127));
  const __m256i v = where(nan, _mm256_set1_epi16(static_cast<short>(kE4m3.bf16[127])),
                          where(small, _mm256_shuffle_epi8(table, at), normal));
  return _mm256_or_si256(v, _mm256_slli_epi16(_mm256_srli_epi16(c, 7), 15));
}

// Converts scales of groups from the first on; rows[o] are those of output o. Each group is written
// to `out`, which advances by `stride` bytes. Returns the number of groups written: whole blocks of
// kGroups.
inline size_t put(const uint8_t* const (&rows)[kRows], size_t groups, bool e4m3, uint8_t* out,
                  size_t stride) {
  size_t g = 0;
  for (; g + kGroups <= groups; g += kGroups) {
    __m128i v[16];
    for (size_t o = 0; o < kRows; ++o)
      v[o] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows[o] + g));
    transpose_16<x86_packing::Bytes16>(v);
    for (const __m128i& codes : v) {
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                          e4m3 ? bf16_of_e4m3(codes) : bf16_of_e8m0(codes));
      out += stride;
    }
  }
  return g;
}

}  // namespace byte_scales
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
