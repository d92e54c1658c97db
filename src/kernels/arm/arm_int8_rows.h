// SPDX-License-Identifier: Apache-2.0
// The int8 family on Arm: quantizes rows and makes panels of rows (layouts: arm_int8.h). Plain
// NEON, so the same for every unit of the family; internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_int8_choice.h"

namespace moebius {
namespace {
namespace int8_family {

// --- rows ---

// Returns the bits of the largest magnitude, which are ordered like the numbers; NaN and infinity
// are largest.
inline uint32_t amax_bits(const float* x, size_t K) {
  const uint32x4_t magnitude = vdupq_n_u32(0x7fffffffu);
  uint32x4_t top[4] = {};
  size_t k = 0;
  for (; k + 16 <= K; k += 16)
    _Pragma("GCC unroll 4") for (size_t i = 0; i < 4; ++i) top[i] =
        vmaxq_u32(top[i], vandq_u32(vreinterpretq_u32_f32(vld1q_f32(x + k + 4 * i)), magnitude));
  uint32_t amax = vmaxvq_u32(vmaxq_u32(vmaxq_u32(top[0], top[1]), vmaxq_u32(top[2], top[3])));
  for (; k < K; ++k) {
    const uint32_t b = __builtin_bit_cast(uint32_t, x[k]) & 0x7fffffffu;
    amax = b > amax ? b : amax;
  }
  return amax;
}

struct RowRange {
  float low, high;  // least and greatest number, zero included
};
inline RowRange range_of(const float* x, size_t K) {
  float32x4_t low = vdupq_n_f32(0), high = low;
  size_t k = 0;
  for (; k + 4 <= K; k += 4) {
    low = vminnmq_f32(low, vld1q_f32(x + k));
    high = vmaxnmq_f32(high, vld1q_f32(x + k));
  }
  RowRange r{vminnmvq_f32(low), vmaxnmvq_f32(high)};
  for (; k < K; ++k) {
    r.low = x[k] < r.low ? x[k] : r.low;
    r.high = x[k] > r.high ? x[k] : r.high;
  }
  return r;
}

// Computes q = RNE(clamp(x / s + zero)) for 16 values. The quotient is first taken as x * (1 / s),
// which is off by less than 1e-4 within the clamp; only if that is close to a tie, the division is
// needed. Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
struct Quantizer {
  float32x4_t s, inverse, zero, low, high;
  bool divide;  // true: 1 / s is not usable, so quotients are divisions

  Quantizer(float scale, float zero_point, float qmin, float qmax)
      : s(vdupq_n_f32(scale)),
        inverse(vdupq_n_f32(1.0f / scale)),
        zero(vdupq_n_f32(zero_point)),
        low(vdupq_n_f32(qmin)),
        high(vdupq_n_f32(qmax)),
        divide(!(scale > 1e-30f && scale < 1e30f)) {}

  template <bool kClamped>
  [[gnu::always_inline]] float32x4_t clamp(float32x4_t v) const {
    return kClamped ? vmaxq_f32(vminq_f32(vaddq_f32(v, zero), high), low) : v;
  }

  // Quantizes 16 numbers. kClamped false: there is no zero point, and s is so large that no number
  // is out of range.
  template <bool kClamped>
  [[gnu::always_inline]] int8x16_t sixteen(const float* x) const {
    const float32x4_t magic = vdupq_n_f32(12582912.0f);
    float32x4_t v[4], m[4], off = vdupq_n_f32(0);
    _Pragma("GCC unroll 4") for (size_t i = 0; i < 4; ++i) {
      v[i] = clamp<kClamped>(vmulq_f32(vld1q_f32(x + 4 * i), inverse));
      m[i] = vaddq_f32(v[i], magic);
      off = vmaxq_f32(off, vabdq_f32(v[i], vsubq_f32(m[i], magic)));
    }
    if (__builtin_expect(divide || vmaxvq_f32(off) > 0.4998f, 0))
      for (size_t i = 0; i < 4; ++i)
        m[i] = vaddq_f32(clamp<kClamped>(vdivq_f32(vld1q_f32(x + 4 * i), s)), magic);
    const int16x8_t a = vuzp1q_s16(vreinterpretq_s16_f32(m[0]), vreinterpretq_s16_f32(m[1]));
    const int16x8_t b = vuzp1q_s16(vreinterpretq_s16_f32(m[2]), vreinterpretq_s16_f32(m[3]));
    return vuzp1q_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b));
  }

  template <bool kClamped>
  void row(const float* x, size_t K, int8_t* q) const {
    size_t k = 0;
    for (; k + 16 <= K; k += 16) vst1q_s8(q + k, sixteen<kClamped>(x + k));
    if (k == K) return;
    float rest[16] = {};
    int8_t codes[16];
    __builtin_memcpy(rest, x + k, (K - k) * 4);
    vst1q_s8(codes, sixteen<kClamped>(rest));
    __builtin_memcpy(q + k, codes, K - k);
  }
};

struct RowScale {
  float s, zero;
};
inline RowScale scale_of_row(const ActSpec& act, const ActParams& params, const float* x, size_t K,
                             uint32_t amax_bits_of_x) {
  const float qmin = -static_cast<float>(1 << (act.bits - 1)), qmax = -qmin - 1.0f;
  if (act.granule == ActGranule::kStatic)
    return {params.scale, static_cast<float>(params.zero_point)};
  if (act.symmetric) {
    const float amax = __builtin_bit_cast(float, amax_bits_of_x);
    const float s = amax / (act.mode == Int8Mode::kCompressedTensors ? (qmax - qmin) / 2.0f : qmax);
    return {s == 0.0f ? 1.0f : s, 0.0f};
  }
  const RowRange r = range_of(x, K);
  float s = (r.high - r.low) / (qmax - qmin);
  if (s == 0.0f) s = 1.0f;
  float zero = qmin - r.low / s;
  zero = zero < qmin ? qmin : zero > qmax ? qmax : zero;
  return {s, __builtin_rintf(zero)};
}

inline void quantize_row(const Problem& p, const ActParams& params, const float* x, size_t K_padded,
                         uint8_t* row) {
  auto* q = reinterpret_cast<int8_t*>(row);
  const uint32_t amax = amax_bits(x, p.K);
  const RowScale made = scale_of_row(p.act, params, x, p.K, amax);
  const bool fixed = p.act.granule == ActGranule::kStatic;
  float scale = fixed ? 1.0f : made.s;  // a static scale is applied with the weights' scale
  auto zero = static_cast<int32_t>(made.zero);
  if (amax >= 0x7f800000u || (!fixed && !(made.s < __builtin_inff()))) {
    scale = __builtin_nanf("");
    zero = fixed ? params.zero_point : 0;
    __builtin_memset(q, 0, K_padded);
  } else {
    const float qmin = -static_cast<float>(1 << (p.act.bits - 1));
    const Quantizer quantize(made.s, made.zero, qmin, -qmin - 1.0f);
    const bool inside = !fixed && p.act.symmetric && p.act.mode == Int8Mode::kDeclared;
    if (inside && !quantize.divide) {  // a subnormal scale may be far too small
      quantize.row<false>(x, p.K, q);
    } else {
      quantize.row<true>(x, p.K, q);
    }
    __builtin_memset(q + p.K, 0, K_padded - p.K);
  }
  __builtin_memcpy(row + K_padded, &scale, 4);
  __builtin_memcpy(row + K_padded + 4, &zero, 4);
}

// Makes canonical rows whose codes are replaced by twice their numbers.
inline void prepare_fp4(const PrepareArgs& a, size_t stride, size_t codes, size_t K_padded) {
  alignas(16) static constexpr int8_t kTwice[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                    0, -1, -2, -3, -4, -6, -8, -12};
  const int8x16_t table = vld1q_s8(kTwice);
  for (size_t m = 0; m < a.M; ++m) {
    uint8_t* row = a.rows + m * stride;
    prepare_rows_canonical({a.problem, a.act, a.x + m * a.ldx, a.ldx, 1, row});
    __builtin_memset(row + codes + a.problem->K, 0, K_padded - a.problem->K);
    for (size_t k = 0; k < K_padded; k += kKr) {
      auto* at = row + codes + k;
      vst1q_s8(reinterpret_cast<int8_t*>(at), vqtbl1q_s8(table, vld1q_u8(at)));
    }
  }
}

inline void prepare_rows(const PrepareArgs& a) {
  if (a.problem->act.code == ActCode::kFp4)
    return prepare_fp4(a, row_bytes(*a.problem), row_codes(*a.problem),
                       shape_of(*a.problem).K_padded);
  const size_t stride = row_bytes(*a.problem), K_padded = shape_of(*a.problem).K_padded;
  for (size_t m = 0; m < a.M; ++m)
    quantize_row(*a.problem, *a.act, a.x + m * a.ldx, K_padded, a.rows + m * stride);
}

// --- panels ---

// Returns up to 16 codes at packed positions from k on, of a row in original order (act-order).
inline int8x16_t gather16(const int8_t* q, const int32_t* columns, size_t k, size_t K) {
  int8_t c[kKr] = {};
  for (size_t i = 0; i < kKr && k + i < K; ++i) c[i] = q[columns[k + i]];
  return vld1q_s8(c);
}

constexpr size_t kSingleRow = 8;  // bytes between steps of 8 inputs if there is no second row
// Writes one pair of rows into its tile; `stride`: bytes between steps of 8 inputs. sums: one
// int32x4 per group, or null.
inline void put_pair(const RowPanelArgs& a, const Shape& s, const int8_t* r0, const int8_t* r1,
                     uint8_t* out, size_t stride, int32_t* sums, size_t sums_stride) {
  const int32_t* columns = a.w->columns;
  for (size_t g = 0, k = 0; g < s.groups; ++g) {
    int32x4_t total[2] = {vdupq_n_s32(0), vdupq_n_s32(0)};
    for (const size_t end = k + s.group_k; k < end; k += kKr, out += 2 * stride) {
      const int8x16_t x =
          columns != nullptr ? gather16(r0, columns, k, a.problem->K) : vld1q_s8(r0 + k);
      int8x16_t y = vdupq_n_s8(0);
      if (r1 != nullptr)
        y = columns != nullptr ? gather16(r1, columns, k, a.problem->K) : vld1q_s8(r1 + k);
      const int8x16_t even = vuzp1q_s8(x, y), odd = vuzp2q_s8(x, y);
      if (stride == kSingleRow) {
        vst1q_s8(reinterpret_cast<int8_t*>(out), vcombine_s8(vget_low_s8(even), vget_low_s8(odd)));
      } else {
        vst1q_s8(reinterpret_cast<int8_t*>(out), even);
        vst1q_s8(reinterpret_cast<int8_t*>(out + stride), odd);
      }
      if (sums != nullptr) {
        total[0] = vpadalq_s16(total[0], vpaddlq_s8(x));
        total[1] = vpadalq_s16(total[1], vpaddlq_s8(y));
      }
    }
    if (sums != nullptr)
      for (size_t i = 0; i < 4; ++i) sums[g * sums_stride + i] = vaddvq_s32(total[i / 2]);
  }
}

inline void make_row_panel(const RowPanelArgs& a, size_t most_pairs) {
  const Problem& p = *a.problem;
  const Shape s = shape_of(p);
  const PanelLayout l = panel_layout(s, a.M);
  const size_t row_stride = row_bytes(p), codes = row_codes(p);
  auto* scales = reinterpret_cast<float*>(a.panel + l.scales);
  auto* sums = reinterpret_cast<int32_t*>(a.panel + l.sums);
  auto* zeros = reinterpret_cast<int32_t*>(a.panel + l.zeros);
  auto* group_scales = reinterpret_cast<float*>(a.panel + l.group_scales);
  const auto row = [&](size_t m) {
    return a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * row_stride;
  };
  for (size_t m = 0; m < 2 * l.pairs; ++m) {
    scales[m] = s.fp4 ? 1.0f : 0.0f;
    if (s.fp4) {
      for (size_t g = 0; g < s.groups; ++g) {
        float v = 0.0f;
        if (m < a.M) __builtin_memcpy(&v, row(m) + 4 * g, 4);
        float* to = group_scales + (g * l.pairs + m / 2) * 4 + m % 2 * 2;
        to[0] = to[1] = v;
      }
      continue;
    }
    if (m < a.M) __builtin_memcpy(scales + m, row(m) + s.K_padded, 4);
    if (!s.row_zeros) continue;
    int32_t zero = 0;
    if (m < a.M) __builtin_memcpy(&zero, row(m) + s.K_padded + 4, 4);
    zeros[2 * m] = zeros[2 * m + 1] = zero;
  }
  const TileMap map(l.pairs, most_pairs);
  for (size_t t = 0; t < map.tiles; ++t)
    for (size_t i = 0; i < map.size(t); ++i) {
      const size_t pair = map.first(t) + i;
      const auto* r0 = reinterpret_cast<const int8_t*>(row(2 * pair) + codes);
      const auto* r1 =
          2 * pair + 1 < a.M ? reinterpret_cast<const int8_t*>(row(2 * pair + 1) + codes) : nullptr;
      put_pair(a, s, r0, r1, a.panel + 2 * map.first(t) * s.K_padded + 16 * i,
               a.M == 1 ? kSingleRow : 16 * map.size(t),
               s.zero_bytes != 0 ? sums + 4 * pair : nullptr, 4 * l.pairs);
    }
}

template <class E>
inline void make_panel_for(const RowPanelArgs& args) {
  const Shape s = shape_of(*args.problem);
  make_row_panel(args, choose_tile(E::kEngine, s, args.M).pairs);
}

}  // namespace int8_family
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
