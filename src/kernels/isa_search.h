// SPDX-License-Identifier: Apache-2.0
// Computes the loss of rounding to integer codes (RowLosses) and the codes of one column of GPTQ
// (ColumnCodes), for units of any instruction set (internal linkage), as in isa_rows.h. Sums run in
// 16 lanes whatever the width, so that every machine chooses the same scale.
#pragma once
#include "kernels/isa_rows.h"

namespace moebius {
namespace {

template <class Isa, size_t kWidth>
struct SearchLoops {
  using SearchV = typename Vectors<kWidth>::Floats;
  typedef uint32_t SearchU __attribute__((vector_size(4 * kWidth)));
  static constexpr size_t kSearchVectors = kSumLanes / kWidth;

  MOEBIUS_ALWAYS_INLINE static SearchV bf16_of(SearchV v) {  // rounds finite numbers to bf16
    const SearchU u = reinterpret_cast<SearchU>(v);
    return reinterpret_cast<SearchV>((u + ((u >> 16 & 1u) + 0x7FFFu)) & 0xFFFF0000u);
  }
  MOEBIUS_ALWAYS_INLINE static SearchV clamped(SearchV v, float low, float high) {
    const SearchV least = low - SearchV{}, most = high - SearchV{};
    v = v < least ? least : v;
    return v > most ? most : v;
  }
  // Adding this constant to a number of at most 2^22 drops the number's fraction, ties to even; the
  // low bits of the sum are then the integer.
  static constexpr float kDropsFraction = 0x1.8p23f;

  // Adds the loss of one scale over whole blocks of 16 numbers to the lanes.
  template <bool kBf16, bool kShifted, bool kWeighed>
  MOEBIUS_ALWAYS_INLINE static void add_losses(const RowLosses& r, const float* x, const float* h,
                                               size_t blocks, float scale, float zero,
                                               SearchV (&sum)[kSearchVectors]) {
    const float inverse = 1.0f / scale;
    for (; blocks > 0; --blocks, x += kSumLanes) {
      for (size_t j = 0; j < kSearchVectors; ++j) {
        const SearchV v = load_vector<SearchV>(x + kWidth * j);
        SearchV y = v * inverse;
        if constexpr (kBf16) y = bf16_of(y);
        if constexpr (kShifted) y = kBf16 ? bf16_of(y + zero) : y + zero;
        SearchV q = (clamped(y, r.low, r.high) + kDropsFraction) - kDropsFraction;
        if constexpr (kShifted) q -= zero;
        const SearchV d = v - q * scale, square = d * d;
        if constexpr (kWeighed)
          sum[j] += load_vector<SearchV>(h + kWidth * j) * square;
        else
          sum[j] += square;
      }
      if constexpr (kWeighed) h += kSumLanes;
    }
  }

  template <bool kBf16, bool kShifted, bool kWeighed>
  MOEBIUS_ALWAYS_INLINE static void losses_as(const RowLosses& r, double* losses) {
    const size_t whole_blocks = r.n / kSumLanes, done = whole_blocks * kSumLanes;
    // Padding with 0 loses nothing, because its code is exact.
    float last[kSumLanes] = {}, last_h[kSumLanes] = {};
    __builtin_memcpy(last, r.x + done, (r.n - done) * sizeof(float));
    if (kWeighed) __builtin_memcpy(last_h, r.h + done, (r.n - done) * sizeof(float));
    for (size_t c = 0; c < r.count; ++c) {
      const float scale = r.scales[c], zero = kShifted ? r.zero_points[c] : 0.0f;
      SearchV sum[kSearchVectors] = {};
      add_losses<kBf16, kShifted, kWeighed>(r, r.x, r.h, whole_blocks, scale, zero, sum);
      if (done < r.n) add_losses<kBf16, kShifted, kWeighed>(r, last, last_h, 1, scale, zero, sum);
      double total = 0;
      for (size_t i = 0; i < kSumLanes; ++i)
        total += static_cast<double>(sum[i / kWidth][i % kWidth]);
      losses[c] = total;
    }
  }

  static void integer_losses(const RowLosses& r, double* losses) noexcept {
    const auto weighed = [&]<bool kBf16, bool kShifted>() {
      if (r.h != nullptr)
        losses_as<kBf16, kShifted, true>(r, losses);
      else
        losses_as<kBf16, kShifted, false>(r, losses);
    };
    if (r.bf16 && r.zero_points != nullptr)
      weighed.template operator()<true, true>();
    else if (r.bf16)
      weighed.template operator()<true, false>();
    else if (r.zero_points != nullptr)
      weighed.template operator()<false, true>();
    else
      weighed.template operator()<false, false>();
  }

  // Encodes one vector of a column (ColumnCodes); codes are the low bytes of the numbers written.
  MOEBIUS_ALWAYS_INLINE static void column_block(const ColumnCodes& c, const float* w,
                                                 const float* scales, const float* zeros,
                                                 uint32_t* codes, float* lost) {
    const SearchV v = load_vector<SearchV>(w), s = load_vector<SearchV>(scales),
                  z = load_vector<SearchV>(zeros);
    const SearchV shifted = clamped(v / s + z, c.low, c.high) + kDropsFraction,
                  q = shifted - kDropsFraction, l = (v - (q - z) * s) / c.divisor;
    __builtin_memcpy(codes, &shifted, sizeof shifted);
    __builtin_memcpy(lost, &l, sizeof l);
  }

  static void column_codes(const ColumnCodes& c) noexcept {
    constexpr size_t kAtOnce = 128;
    uint32_t codes[kAtOnce];
    for (size_t from = 0; from < c.n; from += kAtOnce) {
      const size_t count = c.n - from < kAtOnce ? c.n - from : kAtOnce;
      size_t i = 0;
      for (; i + kWidth <= count; i += kWidth)
        column_block(c, c.w + from + i, c.scales + from + i, c.zero_points + from + i, codes + i,
                     c.lost + from + i);
      if (i < count) {
        const size_t rest = (count - i) * sizeof(float);
        float w[kWidth] = {}, scales[kWidth], zeros[kWidth] = {}, lost[kWidth];
        for (float& s : scales) s = 1.0f;
        __builtin_memcpy(w, c.w + from + i, rest);
        __builtin_memcpy(scales, c.scales + from + i, rest);
        __builtin_memcpy(zeros, c.zero_points + from + i, rest);
        column_block(c, w, scales, zeros, codes + i, lost);
        __builtin_memcpy(c.lost + from + i, lost, rest);
      }
      int8_t* const to = c.codes + from;
      MOEBIUS_INDEPENDENT_LOOP
      for (size_t k = 0; k < count; ++k) to[k] = static_cast<int8_t>(codes[k]);
    }
  }
};

}  // namespace
}  // namespace moebius
