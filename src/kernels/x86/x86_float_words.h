// SPDX-License-Identifier: Apache-2.0
// Words of 32 bits for packing the float family on x86-64 (isa_float_pack.h). AVX2 suffices, because
// memory is the limit. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>

#include "kernels/isa_float.h"
#include "kernels/x86/x86_byte_scales.h"

namespace moebius {
namespace {

struct X86Words {
  using V = __m256i;
  using Bytes = x86_packing::Bytes16;
  static constexpr size_t kScaleRows = byte_scales::kRows;
  static V load(const void* p) { return _mm256_loadu_si256(static_cast<const V*>(p)); }
  static void store(void* p, V v) { _mm256_storeu_si256(static_cast<V*>(p), v); }
  static void store_some(void* p, V v, size_t count) {
    if (count == 4) return _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(v));
    const V lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7),
            mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), lanes);
    _mm256_maskstore_epi32(static_cast<int*>(p), mask, v);
  }
  static V same(int byte) { return _mm256_set1_epi8(static_cast<char>(byte)); }
  static V flip(V v, V by) { return _mm256_xor_si256(v, by); }
  static V pairs(const uint8_t* row) {
    return _mm256_maddubs_epi16(_mm256_and_si256(_mm256_add_epi8(load(row), same(8)), same(15)),
                                _mm256_set1_epi16(0x1001));
  }
  [[gnu::always_inline]] static V nibbles(const uint8_t* row) {
    return _mm256_permute4x64_epi64(_mm256_packus_epi16(pairs(row), pairs(row + 32)), 0xD8);
  }
  static V nans(V found, V v) {
    return _mm256_or_si256(found, _mm256_cmpeq_epi8(_mm256_and_si256(v, same(0x7f)), same(0x7f)));
  }
  static bool any(V found) { return _mm256_movemask_epi8(found) != 0; }
  [[gnu::always_inline]] static void transpose(V (&v)[8]) {
    V a[8], b[8];
    MOEBIUS_UNROLL for (int i = 0; i < 8; i += 2) {
      a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
      a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
    MOEBIUS_UNROLL for (int i = 0; i < 8; i += 4) {
      b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
      b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
      b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
      b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
      v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
  }
  static size_t put_scales(const uint8_t* const (&rows)[kScaleRows], size_t groups, bool e4m3,
                           uint8_t* out, size_t stride) {
    return byte_scales::put(rows, groups, e4m3, out, stride);
  }
};

}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
