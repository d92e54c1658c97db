// SPDX-License-Identifier: Apache-2.0
// The float family on AMX: decodes codes to bf16 (packed weights: isa_float.h). A codec converts 64
// bytes (a unit of 16 outputs) to kUnit / 2 rows of a tile of weights: pairs of inputs, 16 outputs
// side by side. order_of in x86_amx_float_rows.h says which inputs form a pair. Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include "kernels/x86/x86_amx_float_rows.h"

namespace moebius {
namespace {
namespace amx_float {

alignas(64) constexpr Halves kInt4Halves = halves([](unsigned c) {
  return static_cast<float>(c & 15u) - 8.0f;
});
alignas(64) constexpr Halves kDifferences =  // differences of two 4-bit codes, modulo 32
    halves([](unsigned c) { return static_cast<float>(c) - (c < 16 ? 0.0f : 32.0f); });

struct Sixteen {
  float of[16];
};
constexpr Sixteen make_fp4_values() {
  Sixteen t{};
  for (unsigned i = 0; i < 16; ++i) t.of[i] = e2m1_to_f32(i);
  return t;
}
alignas(64) constexpr Sixteen kFp4Values = make_fp4_values();

// Decodes eight codes of 4 bits to f32, input by input, with one shift and one lookup each (VPERMW,
// which would produce pairs of bf16, takes two operations).
template <class F>
[[gnu::always_inline]] inline void nibble_values(__m512i v, __m512 table, F after,
                                                 __m512 (&out)[8]) {
  MOEBIUS_UNROLL for (unsigned j = 0; j < 8; ++j) out[j] =
      after(_mm512_permutexvar_ps(_mm512_srli_epi32(v, 4 * j), table));
}

// Decodes 4-bit codes by table. VPERMW looks at 5 bits, so both halves of the table are equal.
template <const Halves& kTable>
struct Nibbles {
  static constexpr size_t kUnit = 8;
  struct Zeros {};
  const __m512i table = _mm512_load_si512(kTable.of);
  const __m512 wide = _mm512_castsi512_ps(_mm512_slli_epi32(
      _mm512_cvtepu16_epi32(_mm512_castsi512_si256(_mm512_load_si512(kTable.of))), 16));
  static Zeros zeros(const uint8_t*) { return {}; }
  [[gnu::always_inline]] void values(__m512i v, const Zeros&, __m512 (&out)[8]) const {
    nibble_values(
        v, wide, [](__m512 w) { return w; }, out);
  }
  [[gnu::always_inline]] void decode(__m512i v, const Zeros&, __m512i (&out)[4]) const {
    out[0] = _mm512_permutexvar_epi16(v, table);
    out[1] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 4), table);
    out[2] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 8), table);
    out[3] = _mm512_permutexvar_epi16(_mm512_srli_epi16(v, 12), table);
  }
};

// Folded codecs multiply the scales of groups into the weights: the product fits bf16, so groups
// need no sums of their own. This one is for E2M1 times an e4m3 scale.
struct ScaledNibbles {
  static constexpr size_t kUnit = 8;
  struct Zeros {
    __m512 scale;
  };
  const __m512 table = _mm512_load_ps(kFp4Values.of);
  static Zeros zeros(const uint8_t* scales) { return {_mm512_loadu_ps(scales)}; }
  [[gnu::always_inline]] void values(__m512i v, const Zeros& z, __m512 (&out)[8]) const {
    nibble_values(
        v, table, [&](__m512 w) { return _mm512_mul_ps(w, z.scale); }, out);
  }
  [[gnu::always_inline]] void decode(__m512i v, const Zeros& z, __m512i (&out)[4]) const {
    __m512 w[8];
    values(v, z, w);
    MOEBIUS_UNROLL for (int j = 0; j < 4; ++j) out[j] =
        _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(_mm512_castps_si512(w[j]), 16),
                                _mm512_castps_si512(w[j + 4]));
  }
};

// Decodes 4-bit codes minus zero points: 32 differences are possible.
struct NibblesZero {
  static constexpr size_t kUnit = 8;
  struct Zeros {
    __m512i z;
  };
  const __m512i table = _mm512_load_si512(kDifferences.of), low = _mm512_set1_epi16(15);
  static Zeros zeros(const uint8_t* z) {
    const __m512i v = _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(z)));
    const __m512i both = _mm512_mask_blend_epi16(0xAAAAAAAAu, v, _mm512_slli_epi32(v, 16));
    return {_mm512_add_epi16(both, _mm512_set1_epi16(8))};
  }
  [[gnu::always_inline]] __m512i difference(__m512i v, const Zeros& z) const {
    return _mm512_permutexvar_epi16(_mm512_sub_epi16(_mm512_and_si512(v, low), z.z), table);
  }
  [[gnu::always_inline]] void decode(__m512i v, const Zeros& z, __m512i (&out)[4]) const {
    out[0] = difference(v, z);
    out[1] = difference(_mm512_srli_epi16(v, 4), z);
    out[2] = difference(_mm512_srli_epi16(v, 8), z);
    out[3] = difference(_mm512_srli_epi16(v, 12), z);
  }
};

// Decodes e4m3 by two tables with the bytes of 128 bf16 numbers.
struct ByteTables {
  uint8_t low[128], high[128];
};
constexpr ByteTables make_byte_tables() {
  ByteTables t{};
  for (unsigned i = 0; i < 128; ++i) {
    const uint32_t bits = f32_bits(e4m3_to_f32(static_cast<uint8_t>(i))) >> 16;
    t.low[i] = static_cast<uint8_t>(bits);
    t.high[i] = static_cast<uint8_t>(bits >> 8);
  }
  return t;
}
alignas(64) constexpr ByteTables kFp8Bytes = make_byte_tables();

struct Fp8 {
  static constexpr size_t kUnit = 4;
  struct Zeros {};
  const __m512i low[2] = {_mm512_load_si512(kFp8Bytes.low), _mm512_load_si512(kFp8Bytes.low + 64)};
  const __m512i high[2] = {_mm512_load_si512(kFp8Bytes.high),
                           _mm512_load_si512(kFp8Bytes.high + 64)};
  static Zeros zeros(const uint8_t*) { return {}; }
  [[gnu::always_inline]] void decode(__m512i v, const Zeros&, __m512i (&out)[2]) const {
    constexpr __mmask64 kOdd = 0xAAAAAAAAAAAAAAAAu;
    const __m512i lo = _mm512_permutex2var_epi8(low[0], v, low[1]);
    const __m512i mag = _mm512_permutex2var_epi8(high[0], v, high[1]);
    // 0xF8 selects mag | (v & sign).
    const __m512i hi =
        _mm512_ternarylogic_epi32(mag, v, _mm512_set1_epi8(static_cast<char>(0x80)), 0xF8);
    out[0] = _mm512_mask_blend_epi8(kOdd, lo, _mm512_slli_epi16(hi, 8));
    out[1] = _mm512_mask_blend_epi8(kOdd, _mm512_srli_epi16(lo, 8), hi);
  }
};

// Decodes bytes of value + 128: they are placed in the mantissa of 2^23 (or 2^15, one byte higher),
// from which 2^23 + 128 + zero point is subtracted.
struct IntBytes {
  static constexpr size_t kUnit = 4;
  struct Zeros {
    __m512 first, second;
  };
  static Zeros zeros(const uint8_t* z) {
    __m512 by = _mm512_set1_ps(128.0f);
    if (z != nullptr)
      by = _mm512_add_ps(by, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(z)))));
    return {_mm512_add_ps(by, _mm512_set1_ps(0x1p23f)), _mm512_add_ps(by, _mm512_set1_ps(0x1p15f))};
  }
  // Returns (v & mask) | magic, minus `by`: an f32 whose upper half is a bf16.
  [[gnu::always_inline]] static __m512i number(__m512i v, int mask, float magic, __m512 by) {
    const __m512i bits = _mm512_ternarylogic_epi32(
        v, _mm512_set1_epi32(mask), _mm512_castps_si512(_mm512_set1_ps(magic)), 0xEA);
    return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(bits), by));
  }
  [[gnu::always_inline]] static __m512i pair(__m512i even, __m512i odd) {
    return _mm512_mask_blend_epi16(0xAAAAAAAAu, _mm512_srli_epi32(even, 16), odd);
  }
  [[gnu::always_inline]] void decode(__m512i v, const Zeros& z, __m512i (&out)[2]) const {
    const __m512i upper = _mm512_srli_epi32(v, 16);
    out[0] = pair(number(v, 0xFF, 0x1p23f, z.first), number(upper, 0xFF, 0x1p23f, z.first));
    out[1] = pair(number(v, 0xFF00, 0x1p15f, z.second), number(upper, 0xFF00, 0x1p15f, z.second));
  }
};

// Decodes codes times powers of two by adding to their exponents, except for zeros.
template <class Codec>
struct Shifted : Codec {
  using Unscaled = Codec;
  struct Zeros {
    __m512i exponent;
    __m512 scale;
  };
  static Zeros zeros(const uint8_t* scales) {
    const __m512i halves = _mm512_srli_epi32(_mm512_loadu_si512(scales), 16);
    const __m512i both = _mm512_or_si512(halves, _mm512_slli_epi32(halves, 16));
    return {_mm512_sub_epi16(both, _mm512_set1_epi16(0x3F80)), _mm512_loadu_ps(scales)};
  }
  // Not available here; the functions of Codec must be used.
  void values(__m512i, const Zeros&, __m512 (&)[Codec::kUnit]) const = delete;
  [[gnu::always_inline]] void decode(__m512i v, const Zeros& z,
                                     __m512i (&out)[Codec::kUnit / 2]) const {
    Codec::decode(v, typename Codec::Zeros{}, out);
    MOEBIUS_UNROLL for (size_t i = 0; i < Codec::kUnit / 2; ++i) {
      const __mmask32 some = _mm512_test_epi16_mask(out[i], _mm512_set1_epi16(0x7FFF));
      out[i] = _mm512_mask_add_epi16(out[i], some, out[i], z.exponent);
    }
  }
};

// Returns true if all scales of the panel (bf16; 0 after the last output) are between 2^-60 and
// 2^60.
inline bool moderate(const GemmArgs& a, const Shape& s, size_t n) {
  const uint8_t* scales = a.w->data + n / kNr * s.stride() + s.code_bytes;
  const __m512i least = _mm512_set1_epi16((127 - 60) << 7), range = _mm512_set1_epi16(120 << 7);
  __mmask32 out = 0;
  for (size_t i = 0; i < s.groups * s.scale_bytes; i += 64) {
    const __m512i v = _mm512_loadu_si512(scales + i);
    out |= _mm512_mask_cmpgt_epu16_mask(_mm512_test_epi16_mask(v, v), _mm512_sub_epi16(v, least),
                                        range);
  }
  return out == 0;
}

struct Stored {  // the codec of bf16, which needs no decoding
  static constexpr size_t kUnit = 2;
  struct Zeros {};
  static Zeros zeros(const uint8_t*) { return {}; }
  [[gnu::always_inline]] void decode(__m512i v, const Zeros&, __m512i (&out)[1]) const {
    out[0] = v;
  }
};

// true: scales are multiplied into the weights.
template <class Codec>
constexpr bool folded = false;
template <>
constexpr bool folded<ScaledNibbles> = true;
template <class Codec>
constexpr bool folded<Shifted<Codec>> = true;

// true: scales are powers of two, which may be applied later, as one factor of the sums over a step
template <class Codec>
constexpr bool shifted = false;
template <class Codec>
constexpr bool shifted<Shifted<Codec>> = true;

}  // namespace amx_float
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
