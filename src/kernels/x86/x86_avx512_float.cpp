// SPDX-License-Identifier: Apache-2.0
// Implements the float family on CPUs with AVX-512 BW (isa_float_fma_gemm.h): vectors of 16, decoded
// by table.
#include "kernels/x86/x86_float_fma.h"
#ifdef MOEBIUS_KERNEL_BODIES
// g++ 12 leaves the unused lanes of its own AVX-512 intrinsics unset and warns of that.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>
#endif

namespace moebius {
namespace {

#ifdef MOEBIUS_KERNEL_BODIES
using float_panels::Form;

struct SmallFp8 {
  uint16_t of[32];
};
constexpr SmallFp8 small_fp8() {
  SmallFp8 t{};
  for (unsigned i = 0; i < 32; ++i)
    t.of[i] = static_cast<uint16_t>(f32_bits(e4m3_to_f32(static_cast<uint8_t>(i & 7u))) >> 16);
  return t;
}
alignas(64) constexpr SmallFp8 kSmallFp8 = small_fp8();  // bf16 values of e4m3 subnormals

struct Avx512 {
  using Vec = __m512;
  static constexpr size_t kWidth = 16, kRows = 12;
  static constexpr size_t kRegisters = 32, kDirectBytes = 8, kFew = 8;
  static Vec load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
  static void store_some(float* p, Vec v, size_t count) {
    _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << count) - 1u), v);
  }
  static Vec broadcast(float v) { return _mm512_set1_ps(v); }
  template <size_t>
  using Inputs = fma_float::FromMemory;
  static Vec fma(const Inputs<1>& x, size_t i, Vec y, Vec z) {
    return fma(broadcast(x.from[i]), y, z);
  }
  static Vec fma(Vec x, Vec y, Vec z) { return _mm512_fmadd_ps(x, y, z); }
  static Vec mul(Vec x, Vec y) { return _mm512_mul_ps(x, y); }
  static Vec div(Vec x, Vec y) { return _mm512_div_ps(x, y); }
  static Vec halves(const uint8_t* p, bool f16) {
    const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
    return f16 ? _mm512_cvtph_ps(h)
               : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
  }

  static Vec integers(const uint8_t* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  struct Codes {
    Vec table, by;
    Codes(const fma_float::Bf16Table& t, float less) : by(_mm512_set1_ps(less)) {
      const auto wide = [](const uint8_t* bytes) {
        return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes)));
      };
      table = number(
          _mm512_or_si512(_mm512_slli_epi32(wide(t.high), 24), _mm512_slli_epi32(wide(t.low), 16)));
    }
  };

  static Vec number(__m512i bits) { return _mm512_castsi512_ps(bits); }
  static __m512i upper(__m512i v) {
    return _mm512_and_si512(v, _mm512_set1_epi32(static_cast<int>(0xFFFF0000u)));
  }
  // Returns (v & mask) | magic, minus `by`.
  static Vec number(__m512i v, int mask, float magic, Vec by) {
    const __m512i bits = _mm512_ternarylogic_epi32(
        v, _mm512_set1_epi32(mask), _mm512_castps_si512(_mm512_set1_ps(magic)), 0xEA);
    return _mm512_sub_ps(number(bits), by);
  }
  // Converts e4m3 in the upper bytes of 16-bit lanes to bf16.
  static __m512i fp8(__m512i v) {
    __m512i n =
        _mm512_and_si512(_mm512_srai_epi16(v, 4), _mm512_set1_epi16(static_cast<short>(0x07F0)));
    n = _mm512_add_epi16(n, _mm512_set1_epi16(0x3C00));
    n = _mm512_mask_permutexvar_epi16(n, _mm512_testn_epi16_mask(v, _mm512_set1_epi16(0x7800)),
                                      _mm512_srli_epi16(v, 8), _mm512_load_si512(kSmallFp8.of));
    return _mm512_ternarylogic_epi32(n, v, _mm512_set1_epi16(static_cast<short>(0x8000)),
                                     0xF8);  // n | (v & sign)
  }

  template <Form kForm, bool kZero, size_t kUnit>
  [[gnu::always_inline]] static void decode(const Codes& how, const uint8_t* codes,
                                            const uint8_t* zeros, Vec (&out)[kUnit]) {
    const __m512i v = _mm512_loadu_si512(codes);
    Vec zero = _mm512_setzero_ps();
    if constexpr (kZero) zero = integers(zeros);
    if constexpr (kForm == Form::kInt4 || kForm == Form::kFp4) {
      MOEBIUS_UNROLL for (unsigned j = 0; j < 8; ++j) {
        const Vec c = _mm512_permutexvar_ps(_mm512_srli_epi32(v, 4 * j), how.table);
        out[j] = kZero ? _mm512_sub_ps(c, zero) : c;
      }
    } else if constexpr (kForm == Form::kInt8) {
      const Vec by = kZero ? _mm512_add_ps(zero, how.by) : how.by;
      const Vec first = _mm512_add_ps(by, _mm512_set1_ps(0x1p23f));
      const Vec second = _mm512_add_ps(by, _mm512_set1_ps(0x1p15f));
      const __m512i high = _mm512_srli_epi32(v, 16);
      out[0] = number(v, 0xFF, 0x1p23f, first);
      out[1] = number(v, 0xFF00, 0x1p15f, second);
      out[2] = number(high, 0xFF, 0x1p23f, first);
      out[3] = number(high, 0xFF00, 0x1p15f, second);
    } else if constexpr (kForm == Form::kFp8) {
      const __m512i even = fp8(_mm512_slli_epi16(v, 8)), odd = fp8(v);
      out[0] = number(_mm512_slli_epi32(even, 16));
      out[1] = number(_mm512_slli_epi32(odd, 16));
      out[2] = number(upper(even));
      out[3] = number(upper(odd));
    } else if constexpr (kForm == Form::kBf16) {
      out[0] = number(_mm512_slli_epi32(v, 16));
      out[1] = number(upper(v));
    } else if constexpr (kForm == Form::kF16) {
      out[0] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
      out[1] = _mm512_cvtph_ps(_mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 16)));
    } else {
      out[0] = number(v);
    }
  }
};
#endif  // MOEBIUS_KERNEL_BODIES

constexpr uint32_t kNeeds = kAvx2 | kFma | kF16c | kAvx512f | kAvx512bw;
constexpr Kernel kKernels[] = MOEBIUS_FMA_KERNELS("x86_avx512", kNeeds, MOEBIUS_FMA_BODIES(Avx512));

}  // namespace

extern const KernelTable kX86Avx512FloatKernels;
const KernelTable kX86Avx512FloatKernels = {kKernels, sizeof kKernels / sizeof kKernels[0]};

}  // namespace moebius
