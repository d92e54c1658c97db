// SPDX-License-Identifier: Apache-2.0
// The int8 family on x86-64: panels of rows (layouts: x86_int8.h) from canonical prepared rows.
// Nothing beyond AVX2; internal linkage.
#pragma once
#ifdef __x86_64__
#include <immintrin.h>

#include "kernels/x86_int8.h"

namespace moebius {
namespace {
namespace x86_rows {

using namespace x86_int8;

constexpr size_t kBlock = 16;  // inputs at a time; a group takes whole blocks

// Up to 16 codes of one row at packed inputs from k on; zeros beyond.
inline __m128i some_codes(const uint8_t* q, const int32_t* columns, size_t k, size_t end) {
  alignas(16) uint8_t c[kBlock] = {};
  for (size_t i = 0; i < kBlock && k + i < end; ++i)
    c[i] = q[columns != nullptr ? static_cast<size_t>(columns[k + i]) : k + i];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(c));
}

class PanelMaker {
 public:
  PanelMaker(const PanelArgs& a, Engine engine, int32_t bias)
      : a_(a),
        p_(*a.problem),
        s_(shape_of(p_)),
        t_(row_tiles(engine, a.M)),
        l_(panel_layout(s_, t_)),
        from_(prepared_layout(p_)),
        factor_(p_.zero_points ? 1
                : t_.many      ? 0
                               : -bias) {}

  void make() const {
    for (size_t m = 0; m < t_.padded(); ++m) {
      if (m < a_.M) {
        const size_t id = a_.ids != nullptr ? static_cast<size_t>(a_.ids[m]) : m;
        const uint8_t* row = a_.rows + id * from_.row_bytes;
        put_codes(m, row + from_.codes);
        put_scales(m, row);
      } else {
        put_nothing(m);
      }
    }
  }

 private:
  // Where the 16 codes of row m at packed input k go, and how far apart their words lie.
  uint8_t* place(size_t m, size_t k) const {
    const size_t tile = m / t_.rows, i = m % t_.rows;
    uint8_t* base = a_.panel + tile * t_.rows * s_.K_padded;
    if (!t_.many) return base + (k * rows_of(tile) + 4 * i);
    return base + k / s_.step * s_.step * t_.rows + i * s_.step + k % s_.step;
  }
  size_t rows_of(size_t tile) const {
    const size_t left = a_.M - tile * t_.rows;
    return left < t_.rows ? left : t_.rows;
  }
  void put(__m128i v, uint8_t* out, size_t apart) const {
    if (apart == 4) return _mm_storeu_si128(reinterpret_cast<__m128i*>(out), v);
    const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(v)),
               high = static_cast<uint64_t>(_mm_extract_epi64(v, 1));
    const uint32_t words[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                               static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
    for (size_t i = 0; i < 4; ++i) __builtin_memcpy(out + i * apart, &words[i], 4);
  }

  void put_codes(size_t m, const uint8_t* q) const {
    const __m128i order = s_.codes == Codes::kBytes
                              ? _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                              : _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m128i sign = _mm_set1_epi8(-128);
    const size_t apart = t_.many ? 4 : 4 * rows_of(m / t_.rows);
    auto* sums = reinterpret_cast<int32_t*>(a_.panel + l_.sums) + m;
    for (size_t g = 0; g < s_.groups; ++g) {
      const size_t begin = g * s_.length, end = begin + s_.length < p_.K ? begin + s_.length : p_.K;
      __m128i total = _mm_setzero_si128();
      for (size_t i = 0; i < s_.padded; i += kBlock) {
        const size_t k = begin + i;
        const bool whole = k + kBlock <= end && a_.w->columns == nullptr;
        __m128i v = whole ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + k))
                          : some_codes(q, a_.w->columns, k, end);
        if (s_.codes == Codes::kFp4) v = _mm_shuffle_epi8(twice, v);
        total = _mm_add_epi64(total, _mm_sad_epu8(_mm_xor_si128(v, sign), _mm_setzero_si128()));
        put(_mm_shuffle_epi8(v, order), place(m, g * s_.padded + i), apart);
      }
      const auto sum = static_cast<int32_t>(_mm_cvtsi128_si64(total) + _mm_extract_epi64(total, 1));
      sums[g * t_.padded()] = factor_ * (sum - 128 * static_cast<int32_t>(s_.padded));
    }
  }

  void put_scales(size_t m, const uint8_t* row) const {
    const size_t rows = t_.padded();
    auto* scales = reinterpret_cast<float*>(a_.panel + l_.scales) + m;
    auto* group_scales = reinterpret_cast<float*>(a_.panel + l_.group_scales) + m;
    auto* zeros = reinterpret_cast<int32_t*>(a_.panel + l_.zeros) + m;
    const bool fixed = p_.act.granule == ActGranule::kStatic;
    const bool grouped = p_.act.granule == ActGranule::kGroup;
    __builtin_memcpy(scales, row, 4);
    for (size_t g = 0; g < s_.groups; ++g) {
      const size_t at = grouped ? g * s_.length / p_.act.group : 0;
      if (s_.group_scales) __builtin_memcpy(group_scales + g * rows, row + 4 * at, 4);
      if (g > 0 && !s_.row_zeros) continue;
      int32_t zero = fixed ? a_.w->act.zero_point : 0;
      if (from_.zero_points != 0) __builtin_memcpy(&zero, row + 4 * (from_.groups + at), 4);
      zeros[g * rows] = zero;
    }
  }

  void put_nothing(size_t m) const {
    const size_t rows = t_.padded();
    if (t_.many)
      for (size_t k = 0; k < s_.K_padded; k += kBlock)
        _mm_storeu_si128(reinterpret_cast<__m128i*>(place(m, k)), _mm_setzero_si128());
    const uint32_t none = 0;
    for (size_t g = 0; g < s_.groups; ++g) {
      __builtin_memcpy(a_.panel + l_.sums + 4 * (g * rows + m), &none, 4);
      if (s_.group_scales)
        __builtin_memcpy(a_.panel + l_.group_scales + 4 * (g * rows + m), &none, 4);
      if (g == 0 || s_.row_zeros)
        __builtin_memcpy(a_.panel + l_.zeros + 4 * (g * rows + m), &none, 4);
    }
    __builtin_memcpy(a_.panel + l_.scales + 4 * m, &none, 4);
  }

  const PanelArgs& a_;
  const Problem& p_;
  const Shape s_;
  const RowTiles t_;
  const PanelLayout l_;
  const PreparedLayout from_;
  const int32_t factor_;
};

}  // namespace x86_rows
}  // namespace
}  // namespace moebius
#endif  // __x86_64__
