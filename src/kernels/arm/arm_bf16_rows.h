// SPDX-License-Identifier: Apache-2.0
// The float family on Arm: converts rows to bf16 and makes panels of rows (layouts: arm_bf16.h).
// Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_bf16.h"
#include "kernels/arm/arm_bf16_tiles.h"

namespace moebius {
namespace {
namespace bf16_family {

// --- rows ---

// Widens codes of one byte to bf16 in place, from the end to the front; `larger` is added to the
// exponents.
inline void widen_codes(ActCode code, uint8_t* row, size_t K, int larger) {
  const float by = f32_from_bits(static_cast<uint32_t>(127 + larger) << 23);
  uint16_t table[256];
  for (unsigned c = 0; c < 256; ++c) {
    const float v = code == ActCode::kFp8 ? e4m3_to_f32(static_cast<uint8_t>(c)) : e2m1_to_f32(c);
    table[c] = static_cast<uint16_t>(f32_bits(v * by) >> 16);
  }
  for (size_t k = K; k-- > 0;) __builtin_memcpy(row + 2 * k, &table[row[k]], 2);
}

// Writes a row rounded to bf16, times 2^larger.
inline void copy_row(const float* x, size_t K, int larger, uint16_t* out) {
  const float by = f32_from_bits(static_cast<uint32_t>(127 + larger) << 23);
  size_t k = 0;
  for (; k + 8 <= K; k += 8) {
    const float32x4_t lo = vmulq_n_f32(vld1q_f32(x + k), by),
                      hi = vmulq_n_f32(vld1q_f32(x + k + 4), by);
    uint16x8_t v;
    asm("bfcvtn %0.4h, %1.4s" : "=w"(v) : "w"(lo));
    asm("bfcvtn2 %0.8h, %1.4s" : "+w"(v) : "w"(hi));
    vst1q_u16(out + k, v);
  }
  for (; k < K; ++k) out[k] = f32_to_bf16(x[k] * by);
}

inline int headroom_of(const float* x, size_t K) {
  uint32_t top = 0;
  for (size_t k = 0; k < K; ++k) {
    const uint32_t b = f32_bits(x[k]) & 0x7fffffffu;
    top = b > top ? b : top;
  }
  return headroom(top);
}

inline void prepare_rows(const PrepareArgs& a) {
  const Problem& p = *a.problem;
  const size_t stride = row_bytes(p), codes = row_codes(p), K_padded = shape_of(p).K_padded;
  const bool raised = form_of(p) == Form::kFp8;
  for (size_t m = 0; m < a.M; ++m) {
    uint8_t* row = a.rows + m * stride;
    const float* x = a.x + m * a.ldx;
    if (p.act.code == ActCode::kAsIs) {
      const int larger = raised ? headroom_of(x, p.K) : 0;
      copy_row(x, p.K, larger, reinterpret_cast<uint16_t*>(row + codes));
      if (raised) {
        const float factor = f32_from_bits(static_cast<uint32_t>(127 + kRaise - larger) << 23);
        __builtin_memset(row, 0, codes);
        __builtin_memcpy(row, &factor, 4);
      }
    } else {
      prepare_rows_canonical({&p, a.act, x, a.ldx, 1, row});
      widen_codes(p.act.code, row + codes, p.K, raised ? kRaise : 0);
    }
    __builtin_memset(row + codes + 2 * p.K, 0, 2 * (K_padded - p.K));
  }
}

// --- panels ---

struct Step16 {
  uint16x8_t lo, hi;  // 16 inputs of a row: the first and the last eight
};
inline Step16 step_of(const uint16_t* row, const int32_t* columns, size_t k, size_t K) {
  if (columns == nullptr) return {vld1q_u16(row + k), vld1q_u16(row + k + 8)};
  uint16_t c[kKr] = {};
  for (size_t i = 0; i < kKr && k + i < K; ++i) c[i] = row[columns[k + i]];
  return {vld1q_u16(c), vld1q_u16(c + 8)};
}
inline uint8x16_t zip_low(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u8_u64(vzip1q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}
inline uint8x16_t zip_high(uint16x8_t a, uint16x8_t b) {
  return vreinterpretq_u8_u64(vzip2q_u64(vreinterpretq_u64_u16(a), vreinterpretq_u64_u16(b)));
}
// Writes one pair of rows into its tile; `stride`: bytes between quarters. sums: receives the sums of
// both rows in every group, `apart` floats apart; null: they are not needed.
inline void put_pair(const RowPanelArgs& a, const Shape& s, const uint16_t* r0, const uint16_t* r1,
                     uint8_t* out, size_t stride, float* sums, size_t apart) {
  const auto ones = vreinterpretq_u8_u16(vdupq_n_u16(0x3f80));
  float32x4_t sum = vdupq_n_f32(0);
  size_t left = s.group_k;
  for (size_t k = 0; k < s.K_padded; k += kKr, out += 4 * stride) {
    const Step16 x = step_of(r0, a.w->columns, k, a.problem->K);
    Step16 y = {vdupq_n_u16(0), vdupq_n_u16(0)};
    if (r1 != nullptr) y = step_of(r1, a.w->columns, k, a.problem->K);
    const uint16x8_t x_even = vuzp1q_u16(x.lo, x.hi), x_odd = vuzp2q_u16(x.lo, x.hi);
    const uint16x8_t y_even = vuzp1q_u16(y.lo, y.hi), y_odd = vuzp2q_u16(y.lo, y.hi);
    const uint8x16_t quarters[4] = {zip_low(x_even, y_even), zip_high(x_even, y_even),
                                    zip_low(x_odd, y_odd), zip_high(x_odd, y_odd)};
    MOEBIUS_UNROLL for (size_t q = 0; q < 4; ++q) vst1q_u8(out + q * stride, quarters[q]);
    if (sums == nullptr) continue;
    MOEBIUS_UNROLL for (uint8x16_t q : quarters) bf16_tiles::mmla(sum, q, ones);
    if ((left -= kKr) != 0) continue;
    vst1q_f32(sums, sum);
    sum = vdupq_n_f32(0);
    sums += apart;
    left = s.group_k;
  }
}

inline void make_row_panel(const RowPanelArgs& a, size_t most_pairs) {
  const Problem& p = *a.problem;
  const Shape s = shape_of(p);
  const PanelLayout l = panel_layout(s, a.M);
  const size_t stride = row_bytes(p), codes = row_codes(p);
  const auto row = [&](size_t m) {
    return a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * stride;
  };
  auto* factors = reinterpret_cast<float*>(a.panel + l.factors);
  auto* group_factors = reinterpret_cast<float*>(a.panel + l.group_factors);
  const auto scale = [&](size_t m, size_t g) {
    float v = 0.0f;
    if (m < a.M) __builtin_memcpy(&v, row(m) + 4 * g, 4);
    return v;
  };
  for (size_t m = 0; m < 2 * l.pairs; ++m) {
    factors[m] = 1.0f;
    if (p.act.code == ActCode::kAsIs && codes != 0) factors[m] = scale(m, 0);
    if (p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kRow) factors[m] = scale(m, 0);
    if (p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kStatic) {
      // The row's scale: NaN, or the stored scale, which is applied together with the weights'
      // scale.
      const float v = scale(m, 0);
      if (v != v) factors[m] = v;
    }
    for (size_t g = 0; s.row_groups && g < s.groups; ++g) {
      float* to = group_factors + (g * l.pairs + m / 2) * 4 + m % 2 * 2;
      to[0] = to[1] = scale(m, g * s.group_k / s.row_k);
    }
  }
  const TileMap map(l.pairs, most_pairs);
  for (size_t t = 0; t < map.tiles; ++t)
    for (size_t i = 0; i < map.size(t); ++i) {
      const size_t pair = map.first(t) + i;
      const auto* r0 = reinterpret_cast<const uint16_t*>(row(2 * pair) + codes);
      const auto* r1 = 2 * pair + 1 < a.M
                           ? reinterpret_cast<const uint16_t*>(row(2 * pair + 1) + codes)
                           : nullptr;
      put_pair(a, s, r0, r1, a.panel + 4 * map.first(t) * s.K_padded + 16 * i, 16 * map.size(t),
               s.offset_bytes != 0 ? group_factors + 4 * pair : nullptr, 4 * l.pairs);
    }
}

}  // namespace bf16_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
