// SPDX-License-Identifier: Apache-2.0
// The float family on AMX: converts rows to bf16 and makes panels of rows (layouts:
// x86_amx_float.h). Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
// g++ 12 leaves unused lanes of its own AVX-512 intrinsics unset and warns about it.
#if !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"
#endif
#include <immintrin.h>

#include "base/numeric.h"
#include "kernels/x86/x86_amx_float.h"

namespace moebius {
namespace {
namespace amx_float {

// ---- rows ----

struct Halves {
  uint16_t of[32];
};
template <class F>
constexpr Halves halves(F value) {
  Halves t{};
  for (unsigned i = 0; i < 32; ++i) t.of[i] = static_cast<uint16_t>(f32_bits(value(i)) >> 16);
  return t;
}
alignas(64) constexpr Halves kFp4Halves = halves([](unsigned c) { return e2m1_to_f32(c & 15u); });
alignas(64) constexpr Halves kFp8Small = halves([](unsigned c) {
  return e4m3_to_f32(static_cast<uint8_t>(c & 7u));
});

// Widens codes of one byte to bf16 in place, from the end to the front. No code may be NaN.
inline void widen_codes(ActCode code, uint8_t* row, size_t K) {
  const __m512i fp4 = _mm512_load_si512(kFp4Halves.of), small = _mm512_load_si512(kFp8Small.of);
  for (size_t k = up(K, 32); k != 0;) {
    k -= 32;
    const size_t left = K - k;
    const __mmask32 mask = left >= 32 ? 0xFFFFFFFFu : (1u << left) - 1u;
    const __m512i c = _mm512_cvtepu8_epi16(_mm256_maskz_loadu_epi8(mask, row + k));
    __m512i v;
    if (code == ActCode::kFp8) {
      v = _mm512_slli_epi16(_mm512_and_si512(c, _mm512_set1_epi16(0x7f)), 4);
      v = _mm512_add_epi16(v, _mm512_set1_epi16(0x3C00));
      v = _mm512_mask_permutexvar_epi16(v, _mm512_testn_epi16_mask(c, _mm512_set1_epi16(0x78)), c,
                                        small);
      v = _mm512_or_si512(v, _mm512_slli_epi16(_mm512_and_si512(c, _mm512_set1_epi16(0x80)), 8));
    } else {
      v = _mm512_permutexvar_epi16(c, fp4);
    }
    _mm512_storeu_si512(row + 2 * k, _mm512_maskz_mov_epi16(mask, v));
  }
}

inline __m512 from_halves(const uint8_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}
inline __m256i upper_halves(__m512 v) {
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(v), 16));
}
// Returns the part of v that fits bf16, rounded toward zero, so that the remainder is exact.
inline __m512 upper_part(__m512 v) {
  return _mm512_castsi512_ps(
      _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(static_cast<int>(0xFFFF0000u))));
}

// Multiplies bf16 codes by the scales of their groups, in place. A common factor is left to the
// row's factor: products with codes of weights cannot overflow then, and groups may be 2^157 times
// smaller than the largest before their smallest codes are flushed.
inline void fold_scales(const Problem& p, float* scales, uint8_t* codes) {
  const size_t groups = (p.K + p.act.group - 1) / p.act.group;
  float most = 0.0f;
  for (size_t g = 0; g < groups; ++g) most = most >= scales[g] || most != most ? most : scales[g];
  const float factor = most > 0x1p-60f ? most * 0x1p-40f : most;
  for (size_t k = 0; k < p.K; k += 16, codes += 32) {
    const __m512 scale = _mm512_set1_ps(scales[k / p.act.group] / factor);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes),
                        upper_halves(_mm512_mul_ps(from_halves(codes), scale)));
  }
  scales[0] = factor;
}

// Rounds a row to its type and splits it into limbs, `plane` bytes apart.
inline void split_row(const float* x, size_t K, XType type, uint8_t* out, size_t plane) {
  for (size_t k = 0; k < up(K, 32); k += 16, out += 32) {
    const size_t left = k < K ? K - k : 0;
    const auto mask = static_cast<__mmask16>(left >= 16 ? 0xFFFFu : (1u << left) - 1u);
    __m512 v = _mm512_maskz_loadu_ps(mask, x + k);
    auto* to = reinterpret_cast<__m256i*>(out);
    if (type == XType::kBf16) {
      _mm256_storeu_si256(to, reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(v)));
      continue;
    }
    if (type == XType::kF16)
      v = _mm512_cvtph_ps(_mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    const __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
    v = _mm512_mask_mov_ps(v, nan, _mm512_set1_ps(__builtin_nanf("")));
    const __mmask16 finite =
        _mm512_cmp_ps_mask(_mm512_abs_ps(v), _mm512_set1_ps(3.40282347e38f), _CMP_LE_OQ);
    _mm256_storeu_si256(to, upper_halves(v));
    for (size_t l = 1; l < (type == XType::kF16 ? 2 : 3); ++l) {
      v = _mm512_maskz_sub_ps(finite, v, upper_part(v));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + l * plane), upper_halves(v));
    }
  }
}

inline void prepare_rows(const PrepareArgs& a) {
  const Problem& p = *a.problem;
  const size_t stride = row_bytes(p), codes = row_codes(p);
  for (size_t m = 0; m < a.M; ++m) {
    uint8_t* row = a.rows + m * stride;
    const float* x = a.x + m * a.ldx;
    if (p.act.code == ActCode::kAsIs) {
      split_row(x, p.K, p.x_type, row, up(2 * p.K, 64));
    } else {
      prepare_rows_canonical({&p, a.act, x, a.ldx, 1, row});
      widen_codes(p.act.code, row + codes, p.K);
      if (folds_rows(p)) fold_scales(p, reinterpret_cast<float*>(row), row + codes);
    }
  }
}

// ---- a single row ----

// Converts prepared numbers to f32. Returns whether they are moderate: neither a product with a
// code and a scale from 2^-60 to 2^60 nor a sum of 64 such products can overflow or be flushed,
// since all are multiples of 2^-56 times the scale.
inline bool widen_row(const uint8_t* from, size_t count, float* to) {
  const __m512 least = _mm512_set1_ps(0x1p-40f), most = _mm512_set1_ps(0x1p50f);
  __mmask16 out = 0;
  for (size_t k = 0; k < count; k += 16) {
    const __m512 v = from_halves(from + 2 * k), size = _mm512_abs_ps(v);
    _mm512_store_ps(to + k, v);
    const __mmask16 some = _mm512_cmp_ps_mask(size, _mm512_setzero_ps(), _CMP_NEQ_UQ);
    out |= _mm512_cmp_ps_mask(size, most, _CMP_NLE_UQ);
    out |= _mm512_mask_cmp_ps_mask(some, size, least, _CMP_LT_OQ);
  }
  return out == 0;
}

// ---- panels ----

// Returns the order of inputs in a step: position i of a unit holds input kOrder[i] of the unit.
inline __m512i order_of(size_t unit) {
  alignas(64) uint16_t at[32];
  for (unsigned i = 0; i < 32; ++i)
    at[i] = static_cast<uint16_t>(unit == 8   ? (i & ~7u) + (i % 8) / 2 + 4 * (i % 2)
                                  : unit == 4 ? (i & ~3u) + (i % 4) / 2 + 2 * (i % 2)
                                              : i);
  return _mm512_load_si512(at);
}

struct PanelMaker {
  const RowPanelArgs& a;
  const Problem& p;
  const Shape s;
  const PanelLayout l;
  const size_t stride, plane;
  const __m512i order;

  explicit PanelMaker(const RowPanelArgs& args)
      : a(args),
        p(*args.problem),
        s(amx_shape(p)),
        l(panel_layout(p, s, args.M)),
        stride(row_bytes(p)),
        plane(up(2 * p.K, 64)),
        order(order_of(s.unit)) {}

  const uint8_t* row(size_t m) const {
    return a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * stride;
  }
  void put(const uint16_t* step, uint8_t* to) const {
    if (s.step == 32) {
      _mm512_storeu_si512(to, _mm512_permutexvar_epi16(order, _mm512_loadu_si512(step)));
    } else {
      const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(step));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                          _mm256_permutexvar_epi16(_mm512_castsi512_si256(order), half));
    }
  }
  // Writes all steps of one limb of a row.
  void put_row(const uint16_t* from, uint8_t* to) const {
    const size_t apart = l.limbs * l.tile_bytes;
    if (a.w->columns == nullptr) {
      for (size_t k = 0; k < s.K_rows; k += s.step, to += apart) put(from + k, to);
      return;
    }
    for (size_t k = 0; k < s.K_rows; k += s.step, to += apart) {
      uint16_t step[32] = {};
      for (size_t i = 0; i < s.step && k + i < p.K; ++i) step[i] = from[a.w->columns[k + i]];
      put(step, to);
    }
  }
  void make() const {
    auto* factors = reinterpret_cast<float*>(a.panel + l.factors);
    auto* group_factors = reinterpret_cast<float*>(a.panel + l.group_factors);
    for (size_t m = 0; m < l.rows(); ++m) {
      uint8_t* to = a.panel + m / kTile * l.tiles_bytes + m % kTile * s.step * 2;
      factors[m] = 0.0f;
      if (m >= a.M) {
        for (size_t i = 0; i < l.tiles_bytes; i += l.tile_bytes)
          __builtin_memset(to + i, 0, s.step * 2);
        for (size_t g = 0; s.row_groups && g < s.groups; ++g) group_factors[g * l.rows() + m] = 0;
        continue;
      }
      const uint8_t* from = row(m);
      factors[m] = folds_rows(p) ? *reinterpret_cast<const float*>(from) : row_factor(p, from);
      for (size_t g = 0; s.row_groups && g < s.groups; ++g)
        __builtin_memcpy(&group_factors[g * l.rows() + m], from + 4 * (g * s.group_k / s.row_k), 4);
      for (size_t i = 0; i < l.limbs; ++i)
        put_row(reinterpret_cast<const uint16_t*>(from + row_codes(p) + i * plane),
                to + i * l.tile_bytes);
    }
  }
};
inline void make_row_panel(const RowPanelArgs& a) { PanelMaker(a).make(); }

}  // namespace amx_float
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
