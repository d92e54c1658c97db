// SPDX-License-Identifier: Apache-2.0
// Rounds stored weights to codes, for units of any instruction set (internal linkage), as in
// isa_rows.h: the operations of quant/encode.cpp in the same order. Ranges are taken over the bits
// of the numbers, mapped to signed integers in the same order, which unlike a floating-point
// minimum may be reordered; infinities and NaN lie at the ends.
#pragma once
#include "base/numeric.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

// Returns x rounded to the nearest bf16 number, ties to even; x must not be NaN.
MOEBIUS_ALWAYS_INLINE float near_bf16(float x) {
  const uint32_t u = f32_bits(x);
  return f32_from_bits((u + 0x7FFFu + ((u >> 16) & 1u)) & 0xFFFF0000u);
}

template <class Isa>
struct EncodeLoops {
  template <class Bits, class Key, class Value>
  MOEBIUS_ALWAYS_INLINE static void ranges_of(const Bits* x, size_t n, size_t group, float* low,
                                              float* high, Value value) {
    constexpr int kSign = 8 * sizeof(Bits) - 1;
    constexpr auto kRest = static_cast<Bits>(static_cast<Bits>(~Bits{0}) >> 1);
    const auto turned = [](Bits u) {
      return static_cast<Bits>(u ^ static_cast<Bits>(static_cast<Bits>(0 - (u >> kSign)) & kRest));
    };
    for (size_t from = 0; from < n; from += group) {
      const size_t count = n - from < group ? n - from : group;
      const Bits* const p = x + from;
      Key least = 0, most = 0;
      for (size_t i = 0; i < count; ++i) {
        const auto k = static_cast<Key>(turned(p[i]));
        least = k < least ? k : least;
        most = k > most ? k : most;
      }
      *low++ = value(turned(static_cast<Bits>(least)));
      *high++ = value(turned(static_cast<Bits>(most)));
    }
  }

  static void group_ranges(XType type, const void* x, size_t n, size_t group, float* low,
                           float* high) noexcept {
    if (type == XType::kBf16)
      ranges_of<uint16_t, int16_t>(static_cast<const uint16_t*>(x), n, group, low, high,
                                   [](uint16_t u) { return bf16_to_f32(u); });
    else if (type == XType::kF16)
      ranges_of<uint16_t, int16_t>(static_cast<const uint16_t*>(x), n, group, low, high,
                                   [](uint16_t u) { return f16_to_f32(u); });
    else
      ranges_of<uint32_t, int32_t>(static_cast<const uint32_t*>(x), n, group, low, high,
                                   [](uint32_t u) { return f32_from_bits(u); });
  }

  // Returns true if x / s may be computed as x * (1 / s) for bf16 numbers. The quotient of two bf16
  // numbers is never a tie between two others: the odd part of its numerator has at most 8 bits,
  // that of a tie 9. So it is at least 2^-17 of itself away from a tie, and the product with 1 / s
  // is at most 2^-23 from the quotient: both round to the same number. For s of at most 1 neither
  // becomes 0, and below all normal numbers rounding does not matter, because the code is 0.
  static bool has_inverse(float s) { return s >= 0x1p-126f && s <= 1.0f; }

  // Encodes one group: q = code(round(round(x / s) + z)). Uses short loops over a few numbers at a
  // time, because compilers do not vectorise all of it at once. bf16: x, s and quotients are bf16
  // numbers.
  template <class From, class Number, class Round, class Code>
  MOEBIUS_ALWAYS_INLINE static void codes_of(const From* x, size_t n, float s, bool bf16, float z,
                                             bool shifted, uint8_t* q, Number number, Round round,
                                             Code code) {
    constexpr size_t kAtOnce = 128;
    float v[kAtOnce];
    int32_t c[kAtOnce];
    for (size_t from = 0; from < n; from += kAtOnce) {
      const size_t count = n - from < kAtOnce ? n - from : kAtOnce;
      const From* const p = x + from;
      uint8_t* const to = q + from;
      if (bf16 && has_inverse(s)) {
        const float inverse = 1.0f / s;
        MOEBIUS_INDEPENDENT_LOOP
        for (size_t i = 0; i < count; ++i) v[i] = round(number(p[i]) * inverse);
      } else {
        MOEBIUS_INDEPENDENT_LOOP
        for (size_t i = 0; i < count; ++i) v[i] = round(number(p[i]) / s);
      }
      if (shifted) {
        MOEBIUS_INDEPENDENT_LOOP
        for (size_t i = 0; i < count; ++i) v[i] = round(v[i] + z);
      }
      MOEBIUS_INDEPENDENT_LOOP
      for (size_t i = 0; i < count; ++i) c[i] = code(v[i]);
      MOEBIUS_INDEPENDENT_LOOP
      for (size_t i = 0; i < count; ++i) to[i] = static_cast<uint8_t>(c[i]);
    }
  }

  template <class From, class Number, class Round>
  MOEBIUS_ALWAYS_INLINE static void encode_as(const RowEncode& how, const From* x, size_t n,
                                              const float* scales, const float* zero_points,
                                              uint8_t* q, Number number, Round round) {
    for (size_t from = 0, g = 0; from < n; from += how.group, ++g) {
      const size_t count = n - from < how.group ? n - from : how.group;
      const float s = scales[g], z = zero_points != nullptr ? zero_points[g] : 0.0f;
      const float low = how.low, high = how.high;
      const bool bf16 = how.type == XType::kBf16 && how.rounding == XType::kBf16;
      const auto group_codes = [&](auto code) {
        codes_of(x + from, count, s, bf16, z, zero_points != nullptr, q + from, number, round,
                 code);
      };
      if (how.code == RowCode::kInt)
        group_codes([=](float v) { return static_cast<int32_t>(rne(clamp_f32(v, low, high))); });
      else if (how.code == RowCode::kFp8)
        group_codes([=](float v) {
          const uint32_t code = f32_to_e4m3(clamp_f32(v, low, high));
          return static_cast<int32_t>(select_bits(v == 0.0f, 0u, code));
        });
      else
        group_codes([=](float v) {
          const uint32_t code = f32_to_e2m1(clamp_f32(v, low, high));
          return static_cast<int32_t>(select_bits(v == 0.0f, 0u, code));
        });
    }
  }

  static void encode(const RowEncode& how, const void* x, size_t n, const float* scales,
                     const float* zero_points, uint8_t* q) noexcept {
    const auto* halves = static_cast<const uint16_t*>(x);
    const auto* floats = static_cast<const float*>(x);
    const auto as_is = [](float v) { return v; };
    // A lambda is inlined; a function's name would be a call.
    const auto bf16 = [](float v) { return near_bf16(v); };
    const auto f16 = [](float v) { return f16_to_f32(f32_to_f16(v)); };
    const auto from_bf16 = [](uint16_t v) { return bf16_to_f32(v); };
    const auto from_f16 = [](uint16_t v) { return f16_to_f32(v); };
    if (how.type == XType::kBf16 && how.rounding == XType::kBf16)
      encode_as(how, halves, n, scales, zero_points, q, from_bf16, bf16);
    else if (how.type == XType::kBf16)
      encode_as(how, halves, n, scales, zero_points, q, from_bf16, as_is);
    else if (how.type == XType::kF16 && how.rounding == XType::kF16)
      encode_as(how, halves, n, scales, zero_points, q, from_f16, f16);
    else if (how.type == XType::kF16)
      encode_as(how, halves, n, scales, zero_points, q, from_f16, as_is);
    else if (how.rounding == XType::kBf16)
      encode_as(how, floats, n, scales, zero_points, q, as_is, bf16);
    else
      encode_as(how, floats, n, scales, zero_points, q, as_is, as_is);
  }

  static void pack_nibbles(const uint8_t* codes, uint8_t flip, uint8_t* y, size_t n) noexcept {
    MOEBIUS_INDEPENDENT_LOOP
    for (size_t i = 0; i < n; ++i) {
      uint16_t two;
      __builtin_memcpy(&two, codes + 2 * i, sizeof two);
      y[i] = static_cast<uint8_t>(((two & 0x0Fu) | (two >> 4 & 0xF0u)) ^ flip);
    }
  }
};

}  // namespace
}  // namespace moebius
