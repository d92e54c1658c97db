// SPDX-License-Identifier: Apache-2.0
// Implements the float family on CPUs with AVX2, FMA and F16C (isa_float_fma_gemm.h): vectors of 8.
// Codes of 4 bits become bf16 by two tables; bytes are placed in the mantissa of a power of two,
// which is then subtracted.
#include "kernels/x86/x86_float_fma.h"
#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>
#endif

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
using float_panels::Form;

struct Avx2 {
  using Vec = __m256;
  static constexpr size_t kWidth = 8, kRows = 6;
  static constexpr size_t kRegisters = 16, kDirectBytes = 4, kFew = 4;
  static Vec load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
  static void store_some(float* p, Vec v, size_t count) {
    float some[8];
    _mm256_storeu_ps(some, v);
    __builtin_memcpy(p, some, 4 * count);
  }
  static Vec broadcast(float v) { return _mm256_set1_ps(v); }
  template <size_t>
  using Inputs = fma_float::FromMemory;
  static Vec fma(const Inputs<1>& x, size_t i, Vec y, Vec z) {
    return fma(broadcast(x.from[i]), y, z);
  }
  static Vec fma(Vec x, Vec y, Vec z) { return _mm256_fmadd_ps(x, y, z); }
  static Vec mul(Vec x, Vec y) { return _mm256_mul_ps(x, y); }
  static Vec div(Vec x, Vec y) { return _mm256_div_ps(x, y); }
  static Vec halves(const uint8_t* p, bool f16) {
    const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
    return f16 ? _mm256_cvtph_ps(h)
               : _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
  }

  static Vec integers(const uint8_t* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  struct Codes {
    __m256i high, low;  // bytes of bf16 numbers
    Vec by;
    Codes(const fma_float::Bf16Table& t, float less) : by(_mm256_set1_ps(less)) {
      high = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t.high)));
      low = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(t.low)));
    }
  };

  // Returns the bits of `mask`, in units of magic / 2^23, minus `by` = magic + offset.
  static Vec number(__m256i v, int mask, float magic, Vec by) {
    const __m256i bits = _mm256_or_si256(_mm256_and_si256(v, _mm256_set1_epi32(mask)),
                                         _mm256_castps_si256(_mm256_set1_ps(magic)));
    return _mm256_sub_ps(_mm256_castsi256_ps(bits), by);
  }
  // Converts the four bytes of every lane, low to high, minus `by`.
  [[gnu::always_inline]] static void bytes(__m256i v, Vec by, Vec* out) {
    const __m256i high = _mm256_srli_epi32(v, 16);
    const Vec by_low = _mm256_add_ps(by, _mm256_set1_ps(0x1p23f));
    const Vec by_next = _mm256_add_ps(by, _mm256_set1_ps(0x1p15f));
    out[0] = number(v, 0xFF, 0x1p23f, by_low);
    out[1] = number(v, 0xFF00, 0x1p15f, by_next);
    out[2] = number(high, 0xFF, 0x1p23f, by_low);
    out[3] = number(high, 0xFF00, 0x1p15f, by_next);
  }
  [[gnu::always_inline]] static void nibbles(__m256i v, Vec by, Vec* out) {
    const __m256i high = _mm256_srli_epi32(v, 16);
    MOEBIUS_UNROLL for (unsigned j = 0; j < 4; ++j) {
      const float magic = static_cast<float>(1 << (23 - 4 * j));
      const Vec with = _mm256_add_ps(by, _mm256_set1_ps(magic));
      out[j] = number(v, 15 << (4 * j), magic, with);
      out[j + 4] = number(high, 15 << (4 * j), magic, with);
    }
  }
  // Looks up 4-bit codes.
  [[gnu::always_inline]] static void nibbles_by_table(__m256i v, const Codes& how, Vec* out) {
    // Puts bytes 0 and 1 of four outputs side by side, then bytes 2 and 3, so that interleaving
    // upper and lower bytes leaves every output in its lane.
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                           1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i low = _mm256_set1_epi8(15), sorted = _mm256_shuffle_epi8(v, order);
    const __m256i upper = _mm256_set1_epi32(static_cast<int>(0xFFFF0000u));
    MOEBIUS_UNROLL for (int half = 0; half < 2; ++half) {
      const __m256i codes =
          _mm256_and_si256(half == 0 ? sorted : _mm256_srli_epi16(sorted, 4), low);
      const __m256i high_bytes = _mm256_shuffle_epi8(how.high, codes);
      const __m256i low_bytes = _mm256_shuffle_epi8(how.low, codes);
      const __m256i first = _mm256_unpacklo_epi8(low_bytes, high_bytes);
      const __m256i second = _mm256_unpackhi_epi8(low_bytes, high_bytes);
      out[half] = _mm256_castsi256_ps(_mm256_slli_epi32(first, 16));
      out[half + 2] = _mm256_castsi256_ps(_mm256_and_si256(first, upper));
      out[half + 4] = _mm256_castsi256_ps(_mm256_slli_epi32(second, 16));
      out[half + 6] = _mm256_castsi256_ps(_mm256_and_si256(second, upper));
    }
  }
  // Widens f16 in the lower and the upper halves of lanes to two vectors.
  [[gnu::always_inline]] static void widen(__m256i v, Vec& low, Vec& high) {
    const __m256i order = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15, 0,
                                           1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15);
    const __m256i sorted = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(v, order), 0xD8);
    low = _mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
    high = _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1));
  }
  // Converts e4m3 in the upper bytes of 16-bit lanes by way of an f16 that is 2^8 too small.
  [[gnu::always_inline]] static void fp8(__m256i v, Vec* out) {
    const __m256i h =
        _mm256_and_si256(_mm256_srai_epi16(v, 1), _mm256_set1_epi16(static_cast<short>(0xBF80)));
    Vec low, high;
    widen(h, low, high);
    out[0] = mul(low, broadcast(256.0f));
    out[2] = mul(high, broadcast(256.0f));
  }

  template <Form kForm, bool kZero, size_t kUnit>
  [[gnu::always_inline]] static void decode(const Codes& how, const uint8_t* codes,
                                            const uint8_t* zeros, Vec (&out)[kUnit]) {
    const __m256i v = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(codes));
    Vec zero = _mm256_setzero_ps();
    if constexpr (kZero) zero = integers(zeros);
    if constexpr (kForm == Form::kInt4 && kZero) {
      nibbles(v, _mm256_add_ps(zero, broadcast(8.0f)), out);
    } else if constexpr (kForm == Form::kInt4 || kForm == Form::kFp4) {
      nibbles_by_table(v, how, out);
    } else if constexpr (kForm == Form::kInt8) {
      bytes(v, kZero ? _mm256_add_ps(zero, how.by) : how.by, out);
    } else if constexpr (kForm == Form::kFp8) {
      fp8(_mm256_slli_epi16(v, 8), out);
      fp8(v, out + 1);
    } else if constexpr (kForm == Form::kBf16) {
      out[0] = _mm256_castsi256_ps(_mm256_slli_epi32(v, 16));
      out[1] = _mm256_castsi256_ps(
          _mm256_and_si256(v, _mm256_set1_epi32(static_cast<int>(0xFFFF0000u))));
    } else if constexpr (kForm == Form::kF16) {
      widen(v, out[0], out[1]);
    } else {
      out[0] = _mm256_castsi256_ps(v);
    }
  }
};
#endif  // MOEBIUS_KERNEL_BODIES

constexpr Kernel kKernels[] =
    MOEBIUS_FMA_KERNELS("x86_avx2", kAvx2 | kFma | kF16c, MOEBIUS_FMA_BODIES(Avx2));

}  // namespace

extern const KernelTable kX86Avx2FloatKernels;
const KernelTable kX86Avx2FloatKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
