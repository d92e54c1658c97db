// SPDX-License-Identifier: Apache-2.0
// The int8 family on x86-64: makes panels of rows (layouts: x86_int8.h) from canonical prepared
// rows. Uses nothing beyond AVX2; internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <immintrin.h>

#include "kernels/x86/x86_int8.h"

namespace moebius {
namespace {
namespace x86_rows {

using namespace x86_int8;

constexpr size_t kBlock = 16;  // number of inputs at a time; a group has whole blocks

// Loads up to 16 codes of one row at inputs from k on; zeros after the end.
inline __m128i block(const uint8_t* q, const int32_t* columns, size_t k, size_t end) {
  if (columns == nullptr && k + kBlock <= end)
    return _mm_loadu_si128(reinterpret_cast<const __m128i*>(q + k));
  alignas(16) uint8_t c[kBlock] = {};
  for (size_t i = 0; i < kBlock && k + i < end; ++i)
    c[i] = q[columns != nullptr ? static_cast<size_t>(columns[k + i]) : k + i];
  return _mm_load_si128(reinterpret_cast<const __m128i*>(c));
}

class PanelMaker {
 public:
  PanelMaker(const RowPanelArgs& a, Engine engine, int32_t bias)
      : a_(a),
        p_(*a.problem),
        s_(shape_of(p_)),
        t_(row_tiles(s_, engine, a.M)),
        l_(panel_layout(s_, t_)),
        from_(prepared_layout(p_)),
        factor_(p_.zero_points ? 1 : s_.offset_bias - (t_.many ? 0 : bias)) {}

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
  size_t rows_of(size_t tile) const {
    const size_t left = a_.M - tile * t_.rows;
    return left < t_.rows ? left : t_.rows;
  }
  // Writes 16 codes of the row's inputs from k of a group on; out: begin of the group.
  void put(__m128i v, uint8_t* out, size_t k, size_t rows) const {
    if (t_.code_bytes == 1) return put_bytes(v, out, k, rows);
    const __m128i pairs =
        _mm_shuffle_epi8(v, _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15));
    put_bytes(_mm_cvtepi8_epi16(pairs), out, 2 * k, rows);
    put_bytes(_mm_cvtepi8_epi16(_mm_srli_si128(pairs, 8)), out, 2 * k + kBlock, rows);
  }
  // Writes 16 bytes of the row's codes from byte k on.
  void put_bytes(__m128i v, uint8_t* out, size_t k, size_t rows) const {
    if (t_.many || rows == 1) {
      uint8_t* to = t_.many ? out + (k & ~(s_.step - 1)) * rows + (k & (s_.step - 1)) : out + k;
      return _mm_storeu_si128(reinterpret_cast<__m128i*>(to), v);
    }
    const auto low = static_cast<uint64_t>(_mm_cvtsi128_si64(v)),
               high = static_cast<uint64_t>(_mm_extract_epi64(v, 1));
    const uint32_t words[4] = {static_cast<uint32_t>(low), static_cast<uint32_t>(low >> 32),
                               static_cast<uint32_t>(high), static_cast<uint32_t>(high >> 32)};
    out += k * rows;
    for (size_t i = 0; i < 4; ++i) __builtin_memcpy(out + 4 * i * rows, &words[i], 4);
  }

  void put_codes(size_t m, const uint8_t* q) const {
    const __m128i order = s_.codes == Codes::kBytes
                              ? _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
                              : _mm_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15);
    const __m128i twice = _mm_setr_epi8(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
    const __m256i order2 = _mm256_broadcastsi128_si256(order),
                  twice2 = _mm256_broadcastsi128_si256(twice), sign = _mm256_set1_epi8(-128);
    const size_t tile = m / t_.rows, rows = t_.many ? t_.rows : rows_of(tile);
    uint8_t* out = a_.panel + tile * t_.rows * s_.K_padded * t_.code_bytes +
                   m % t_.rows * (t_.many ? s_.step : sizeof(uint32_t));
    auto* sums = reinterpret_cast<int32_t*>(a_.panel + l_.sums) + m;
    auto* offset_sums = reinterpret_cast<float*>(a_.panel + l_.offset_sums) + m;
    const int32_t* columns = a_.w->columns;
    const bool fp4 = s_.codes == Codes::kFp4, wide = t_.many && s_.step >= 2 * kBlock;
    for (size_t g = 0; g < s_.groups; ++g, out += s_.padded * rows * t_.code_bytes) {
      const size_t begin = g * s_.length, end = begin + s_.length < p_.K ? begin + s_.length : p_.K;
      __m256i total = _mm256_setzero_si256();
      for (size_t k = 0; k < s_.padded; k += 2 * kBlock) {
        const size_t at = begin + k;
        __m256i v =
            columns == nullptr && at + 2 * kBlock <= end
                ? _mm256_loadu_si256(reinterpret_cast<const __m256i*>(q + at))
                : _mm256_set_m128i(k + kBlock < s_.padded ? block(q, columns, at + kBlock, end)
                                                          : _mm_setzero_si128(),
                                   block(q, columns, at, end));
        if (fp4) v = _mm256_shuffle_epi8(twice2, v);
        if (factor_ != 0 || s_.offsets)
          total = _mm256_add_epi64(
              total, _mm256_sad_epu8(_mm256_xor_si256(v, sign), _mm256_setzero_si256()));
        v = _mm256_shuffle_epi8(v, order2);
        if (wide) {
          uint8_t* to = out + (k & ~(s_.step - 1)) * rows + (k & (s_.step - 1));
          _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), v);
        } else {
          put(_mm256_castsi256_si128(v), out, k, rows);
          if (k + kBlock < s_.padded) put(_mm256_extracti128_si256(v, 1), out, k + kBlock, rows);
        }
      }
      sums[g * t_.padded()] = 0;
      if (factor_ == 0 && !s_.offsets) continue;
      const __m128i half =
          _mm_add_epi64(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
      const int64_t sum = _mm_cvtsi128_si64(half) + _mm_extract_epi64(half, 1);
      const size_t counted = (s_.padded + 2 * kBlock - 1) / (2 * kBlock) * (2 * kBlock);
      const auto codes = static_cast<int32_t>(sum - 128 * static_cast<int64_t>(counted));
      sums[g * t_.padded()] = factor_ * codes;
      if (s_.offsets) offset_sums[g * t_.padded()] = static_cast<float>(codes);
    }
  }

  void put_scales(size_t m, const uint8_t* row) const {
    const size_t rows = t_.padded();
    auto* scales = reinterpret_cast<float*>(a_.panel + l_.scales) + m;
    auto* group_scales = reinterpret_cast<float*>(a_.panel + l_.group_scales) + m;
    auto* zeros = reinterpret_cast<int32_t*>(a_.panel + l_.zeros) + m;
    const bool fixed = p_.act.granule == ActGranule::kStatic;
    const bool grouped = p_.act.granule == ActGranule::kGroup, same = s_.length == p_.act.group;
    __builtin_memcpy(scales, row, 4);
    for (size_t g = 0; g < s_.groups; ++g) {
      const size_t at = !grouped ? 0 : same ? g : g * s_.length / p_.act.group;
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
        put(_mm_setzero_si128(),
            a_.panel + m / t_.rows * t_.rows * s_.K_padded + m % t_.rows * s_.step, k, t_.rows);
    const uint32_t none = 0;
    for (size_t g = 0; g < s_.groups; ++g) {
      __builtin_memcpy(a_.panel + l_.sums + 4 * (g * rows + m), &none, 4);
      if (s_.group_scales)
        __builtin_memcpy(a_.panel + l_.group_scales + 4 * (g * rows + m), &none, 4);
      if (g == 0 || s_.row_zeros)
        __builtin_memcpy(a_.panel + l_.zeros + 4 * (g * rows + m), &none, 4);
      if (s_.offsets) __builtin_memcpy(a_.panel + l_.offset_sums + 4 * (g * rows + m), &none, 4);
    }
    __builtin_memcpy(a_.panel + l_.scales + 4 * m, &none, 4);
  }

  const RowPanelArgs& a_;
  const Problem& p_;
  const Shape s_;
  const RowTiles t_;
  const PanelLayout l_;
  const PreparedLayout from_;
  const int32_t factor_;
};

template <class E>
void make_row_panel(const RowPanelArgs& args) {
  PanelMaker(args, E::kEngine, E::bias(shape_of(*args.problem).codes)).make();
}

}  // namespace x86_rows
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
