// SPDX-License-Identifier: Apache-2.0
// The float family on Arm: packing of weights, rows as bf16, panels of rows (layouts: arm_bf16.h). Internal linkage.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm_bf16.h"

namespace moebius {
namespace {
namespace bf16_family {

// ---------------------------------------------------------------------------------------------- weights

inline uint8_t without_nan(uint8_t c) {
  return (c & 0x7f) == 0x7f ? 0 : c;
}  // NaN is carried by the scale

// Interleaves 8 bytes of two outputs by fours.
inline uint8x16_t by_fours(uint8x8_t o0, uint8x8_t o1) {
  const uint32x2_t a = vreinterpret_u32_u8(o0), b = vreinterpret_u32_u8(o1);
  return vreinterpretq_u8_u32(vcombine_u32(vzip1_u32(a, b), vzip2_u32(a, b)));
}

// 16 codes of one output as they will lie in memory: 8 bytes of nibbles, or 16 bytes (natural order of inputs).
inline void codes_of(const PackArgs& a, const Shape& s, size_t r, size_t k, size_t k1,
                     uint8_t* out) {
  const size_t end = k + kKr < k1 ? k + kKr : k1;
  const bool nibbles = s.form == Form::kInt4 || s.form == Form::kFp4;
  __builtin_memset(out, s.form == Form::kInt4 ? 0x88 : 0, kKr);
  if (r >= a.w->N || k >= end) return;
  if (nibbles) {
    unpack_nibbles(*a.w, r, k, end, a.columns, out);
  } else if (s.form == Form::kInt8) {
    unpack_int8(*a.w, r, k, end, a.columns, reinterpret_cast<int8_t*>(out));
  } else {
    const uint8_t* row = a.w->codes + r * a.w->row_bytes;
    for (size_t i = k; i < end; ++i)
      out[i - k] = without_nan(row[a.columns != nullptr ? static_cast<size_t>(a.columns[i]) : i]);
  }
}

inline void put_bytes(uint8_t* out, size_t j, uint8x16_t r0, uint8x16_t r1) {
  vst1q_u8(out + 32 * j, by_fours(vget_low_u8(vuzp1q_u8(r0, r0)), vget_low_u8(vuzp1q_u8(r1, r1))));
  vst1q_u8(out + 32 * j + 16,
           by_fours(vget_low_u8(vuzp2q_u8(r0, r0)), vget_low_u8(vuzp2q_u8(r1, r1))));
}

// Whether any e4m3 code that was packed is NaN, or subnormal.
struct Seen {
  uint8x16_t nan = vdupq_n_u8(0), small = vdupq_n_u8(0);
  bool all = false;  // every code of the group was looked at
  uint8x16_t look(uint8x16_t v) {
    const uint8x16_t size = vandq_u8(v, vdupq_n_u8(0x7f)), is = vceqq_u8(size, vdupq_n_u8(0x7f));
    nan = vorrq_u8(nan, is);
    small = vorrq_u8(small, vcltq_u8(vsubq_u8(size, vdupq_n_u8(1)), vdupq_n_u8(7)));
    return vbicq_u8(v, is);  // NaN is carried by the scale
  }
};

// Codes of one group of a panel: inputs [k, k + group_k), those past K zero; of dense weights only what has changed.
inline Seen pack_codes(const PackArgs& a, const Shape& s, size_t n, size_t k, uint8_t* out) {
  Seen seen;
  const QuantMatrix& w = *a.w;
  const size_t end = k + s.group_k, k1 = end < w.K ? end : w.K;
  const bool straight = n + kNr <= w.N && a.columns == nullptr;
  const uint8_t* rows = w.codes + n * w.row_bytes;
  if (straight && (w.code == CodeType::kInt4Offset || w.code == CodeType::kFp4)) {
    for (; k + kKr <= k1; k += kKr, out += s.step_bytes)
      for (size_t j = 0; j < 4; ++j) {
        const uint8_t* at = rows + 2 * j * w.row_bytes + k / 2;
        vst1q_u8(out + 16 * j, by_fours(vld1_u8(at), vld1_u8(at + w.row_bytes)));
      }
  } else if (straight && w.code == CodeType::kFp8) {
    for (; k + kKr <= k1; k += kKr, out += s.step_bytes)
      for (size_t j = 0; j < 4; ++j) {
        const uint8_t* at = rows + 2 * j * w.row_bytes + k;
        put_bytes(out, j, seen.look(vld1q_u8(at)), seen.look(vld1q_u8(at + w.row_bytes)));
      }
    seen.all = k >= k1;
  }
  if (straight && w.code == CodeType::kBf16) {
    if (a.changed_from > k) {
      const size_t skipped = (a.changed_from - k) / kKr;
      k += skipped * kKr, out += skipped * s.step_bytes;
    }
    for (; k + kKr <= k1 && k < a.changed_to; k += kKr, out += s.step_bytes)
      for (size_t j = 0; j < 4; ++j) {
        uint16x8_t even[2], odd[2];
        for (size_t r = 0; r < 2; ++r) {
          const uint8_t* at = rows + (2 * j + r) * w.row_bytes + 2 * k;
          const uint16x8_t lo = vreinterpretq_u16_u8(vld1q_u8(at)),
                           hi = vreinterpretq_u16_u8(vld1q_u8(at + 16));
          even[r] = vuzp1q_u16(lo, hi), odd[r] = vuzp2q_u16(lo, hi);
        }
        const auto put = [&](size_t q, uint16x8_t a0, uint16x8_t a1, bool upper) {
          const uint64x2_t x = vreinterpretq_u64_u16(a0), y = vreinterpretq_u64_u16(a1);
          vst1q_u8(out + 64 * q + 16 * j,
                   vreinterpretq_u8_u64(upper ? vzip2q_u64(x, y) : vzip1q_u64(x, y)));
        };
        put(0, even[0], even[1], false), put(1, even[0], even[1], true);
        put(2, odd[0], odd[1], false), put(3, odd[0], odd[1], true);
      }
    if (k >= a.changed_to) return seen;
  }
  for (; k < end; k += kKr, out += s.step_bytes)
    for (size_t j = 0; j < 4; ++j) {
      if (s.form == Form::kBf16) {
        uint16_t c[2][kKr] = {};
        for (size_t r = 0; r < 2; ++r)
          if (n + 2 * j + r < w.N && k < k1)
            unpack_bf16(w, n + 2 * j + r, k, k + kKr < k1 ? k + kKr : k1, a.columns, c[r]);
        for (size_t q = 0; q < 4; ++q) {
          uint16_t operand[8];
          for (size_t i = 0; i < 8; ++i) operand[i] = c[i / 4][8 * (q % 2) + 2 * (i % 4) + q / 2];
          __builtin_memcpy(out + 64 * q + 16 * j, operand, 16);
        }
        continue;
      }
      uint8_t c[2][kKr];
      for (size_t r = 0; r < 2; ++r) codes_of(a, s, n + 2 * j + r, k, k1, c[r]);
      if (s.form == Form::kInt4 || s.form == Form::kFp4) {
        vst1q_u8(out + 16 * j, by_fours(vld1_u8(c[0]), vld1_u8(c[1])));
      } else {
        put_bytes(out, j, vld1q_u8(c[0]), vld1q_u8(c[1]));
      }
    }
  return seen;
}

// What e4m3 codes of one output in inputs [k, k1) hold: bit 0 a NaN, bit 1 a subnormal.
inline unsigned survey(const PackArgs& a, size_t r, size_t k, size_t k1) {
  const uint8_t* row = a.w->codes + r * a.w->row_bytes;
  unsigned found = 0;
  if (a.columns == nullptr) {
    uint8x16_t nan = vdupq_n_u8(0), small = nan;
    for (; k + 16 <= k1; k += 16) {
      const uint8x16_t m = vandq_u8(vld1q_u8(row + k), vdupq_n_u8(0x7f));
      nan = vorrq_u8(nan, vceqq_u8(m, vdupq_n_u8(0x7f)));
      small = vorrq_u8(small, vcltq_u8(vsubq_u8(m, vdupq_n_u8(1)), vdupq_n_u8(7)));
    }
    found = (vmaxvq_u8(nan) != 0 ? 1u : 0u) | (vmaxvq_u8(small) != 0 ? 2u : 0u);
  }
  for (; k < k1; ++k) {
    const unsigned m = row[a.columns != nullptr ? static_cast<size_t>(a.columns[k]) : k] & 0x7fu;
    found |= m == 0x7fu ? 1u : m - 1u < 7u ? 2u : 0u;
  }
  return found;
}

// Where the scales of the outputs of a panel begin, in elements.
struct ScaleRows {
  size_t at[kNr] = {};
  ScaleRows(const QuantMatrix& w, size_t n) {
    for (size_t i = 0; i < kNr && n + i < w.N && w.scale_type != ScaleType::kNone; ++i)
      at[i] = (n + i + w.n_phase) / w.block_n * w.scale_stride;
  }
};
inline float scale_at(const QuantMatrix& w, size_t at) {
  uint16_t half;
  float scale;
  switch (w.scale_type) {
    case ScaleType::kBf16:
      __builtin_memcpy(&half, w.scales + 2 * at, 2);
      return bf16_to_f32(half);
    case ScaleType::kFp8:
      return e4m3_to_f32(w.scales[at]);
    case ScaleType::kE8m0:
      return e8m0_to_f32(w.scales[at]);
    default:
      decode_scales(w.scale_type, w.scales + scale_size(w.scale_type) * at, 1, &scale);
      return scale;
  }
}

// bf16 of the scales that are one byte.
struct ScaleTable {
  uint16_t from[256];
};
template <class F>
constexpr ScaleTable scale_table(F value) {
  ScaleTable t{};
  for (unsigned i = 0; i < 256; ++i)
    t.from[i] = static_cast<uint16_t>(f32_bits(value(static_cast<uint8_t>(i))) >> 16);
  return t;
}
constexpr ScaleTable kFp8Scales = scale_table([](uint8_t c) { return e4m3_to_f32(c); }),
                     kE8m0Scales = scale_table([](uint8_t c) { return e8m0_to_f32(c); });

// The scales of 8 outputs as bf16, where nothing else is to be said about them.
inline void copy_scales(const QuantMatrix& w, const ScaleRows& rows, size_t column, uint8_t* out) {
  uint16_t half[kNr];
  if (w.scale_type == ScaleType::kBf16) {
    for (size_t i = 0; i < kNr; ++i)
      __builtin_memcpy(&half[i], w.scales + 2 * (rows.at[i] + column), 2);
  } else {
    const ScaleTable& table = w.scale_type == ScaleType::kFp8 ? kFp8Scales : kE8m0Scales;
    for (size_t i = 0; i < kNr; ++i) half[i] = table.from[w.scales[rows.at[i] + column]];
  }
  __builtin_memcpy(out, half, sizeof half);
}

inline void pack_extras(const PackArgs& a, const Shape& s, size_t n, size_t g,
                        const ScaleRows& rows, const Seen& seen, uint8_t* out) {
  const QuantMatrix& w = *a.w;
  if (s.scale_bytes == 0) return;
  const size_t k = g * s.group_k, k1 = k + s.group_k < w.K ? k + s.group_k : w.K;
  const size_t column = k / s.weight_k;
  const bool fp8 = s.form == Form::kFp8;
  if (s.bf16 && !fp8 && s.zero_bytes == 0 && n + kNr <= w.N)
    return copy_scales(w, rows, column, out);
  __builtin_memset(out, 0, s.scale_bytes + s.zero_bytes + s.flag_bytes);
  const bool clean = seen.all && vmaxvq_u8(seen.nan) == 0;
  bool plain = fp8 && (!clean || vmaxvq_u8(seen.small) == 0);
  float scales[kNr] = {};
  for (size_t i = 0; i < kNr && n + i < w.N; ++i) {
    const size_t at = rows.at[i] + column;
    scales[i] = scale_at(w, at);
    const unsigned found = fp8 && !clean ? survey(a, n + i, k, k1) : 0;
    if ((found & 1) != 0) scales[i] = __builtin_nanf("");
    plain = plain && found == 0 && scales[i] < 16.0f &&
            scales[i] > -16.0f;  // 8 times a scale must not overflow anywhere
    if (s.zero_bytes != 0) out[s.scale_bytes + i] = static_cast<uint8_t>(w.zero_points[at]);
  }
  if (s.flag_bytes != 0) out[s.scale_bytes + s.zero_bytes] = plain ? 1 : 0;
  for (size_t i = 0; i < kNr; ++i) {
    const auto bits = __builtin_bit_cast(uint32_t, plain ? 8.0f * scales[i] : scales[i]);
    const auto upper = static_cast<uint16_t>(bits >> 16);
    if (s.bf16) {
      __builtin_memcpy(out + 2 * i, &upper, 2);
    } else {
      __builtin_memcpy(out + 4 * i, &bits, 4);
    }
  }
}

inline void pack(const PackArgs& a) {
  const Shape s = shape_of(*a.problem);
  for (size_t n = a.n0; n < a.n1; n += kNr) {
    uint8_t* out = a.packed + (a.row0 + n) / kNr * s.stride();
    const ScaleRows rows(*a.w, n);
    for (size_t g = 0; g < s.groups; ++g, out += s.group_bytes()) {
      const Seen seen = pack_codes(a, s, n, g * s.group_k, out);
      pack_extras(a, s, n, g, rows, seen, out + s.code_bytes);
    }
    __builtin_memset(out, 0, s.stride() - s.groups * s.group_bytes());
  }
}

// ---------------------------------------------------------------------------------------------- rows

// Codes of one byte become bf16 in place, from the end to the front; `larger` is added to the exponents.
inline void widen_codes(ActCode code, uint8_t* row, size_t K, int larger) {
  const float by = f32_from_bits(static_cast<uint32_t>(127 + larger) << 23);
  uint16_t table[256];
  for (unsigned c = 0; c < 256; ++c) {
    const float v = code == ActCode::kFp8 ? e4m3_to_f32(static_cast<uint8_t>(c)) : e2m1_to_f32(c);
    table[c] = static_cast<uint16_t>(f32_bits(v * by) >> 16);
  }
  for (size_t k = K; k-- > 0;) __builtin_memcpy(row + 2 * k, &table[row[k]], 2);
}

// A row rounded to bf16, times 2^larger.
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

// How far the exponents of a row can be raised: its largest number to 2^125, at most by 126.
inline int room_of(const float* x, size_t K) {
  uint32_t top = 0;
  for (size_t k = 0; k < K; ++k) {
    const uint32_t b = f32_bits(x[k]) & 0x7fffffffu;
    top = b > top ? b : top;
  }
  if (top >= 0x7f800000u) return 0;  // NaN or infinity: so are the outputs
  const int room = 125 - (static_cast<int>(top >> 23) - 127);
  return room > 126 ? 126 : room;
}

inline void prepare_rows(const PrepareArgs& a) {
  const Problem& p = *a.problem;
  const size_t stride = row_bytes(p), codes = row_codes(p), K_padded = shape_of(p).K_padded;
  const bool raised = form_of(p) == Form::kFp8;
  for (size_t m = 0; m < a.M; ++m) {
    uint8_t* row = a.rows + m * stride;
    const float* x = a.x + m * a.ldx;
    if (p.act.code == ActCode::kAsIs) {
      const int larger = raised ? room_of(x, p.K) : 0;
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

// ---------------------------------------------------------------------------------------------- panels

struct Step16 {
  uint16x8_t lo, hi;  // 16 inputs of a row
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
// One pair of rows into its tile; `stride` = bytes between quarters.
inline void put_pair(const PanelArgs& a, const Shape& s, const uint16_t* r0, const uint16_t* r1,
                     uint8_t* out, size_t stride) {
  for (size_t k = 0; k < s.K_padded; k += kKr, out += 4 * stride) {
    const Step16 x = step_of(r0, a.w->columns, k, a.problem->K);
    Step16 y = {vdupq_n_u16(0), vdupq_n_u16(0)};
    if (r1 != nullptr) y = step_of(r1, a.w->columns, k, a.problem->K);
    const uint16x8_t x_even = vuzp1q_u16(x.lo, x.hi), x_odd = vuzp2q_u16(x.lo, x.hi);
    const uint16x8_t y_even = vuzp1q_u16(y.lo, y.hi), y_odd = vuzp2q_u16(y.lo, y.hi);
    vst1q_u8(out, zip_low(x_even, y_even));
    vst1q_u8(out + stride, zip_high(x_even, y_even));
    vst1q_u8(out + 2 * stride, zip_low(x_odd, y_odd));
    vst1q_u8(out + 3 * stride, zip_high(x_odd, y_odd));
  }
}

inline void make_panel(const PanelArgs& a, size_t most_pairs) {
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
      const float v = scale(m, 0);  // NaN, or the stored scale, which is applied with the weights'
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
      put_pair(a, s, r0, r1, a.panel + 4 * map.first(t) * s.K_padded + 16 * i, 16 * map.size(t));
    }
}

}  // namespace bf16_family
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
