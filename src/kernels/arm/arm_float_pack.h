// SPDX-License-Identifier: Apache-2.0
// Float weights on Arm at their stored width: packing of weights, panels of rows (layouts:
// arm_float.h). Internal linkage.
#pragma once
#ifdef __aarch64__
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_float.h"

namespace moebius {
namespace {
namespace float_family {

// ---------------------------------------------------------------------------------------------- weights

// How codes are kept: bytes of one, whether outputs lie in turn, and what becomes of a byte.
template <size_t kBytes, bool kTurned = false>
struct Dense {
  static constexpr size_t kSize = kBytes;
  static constexpr bool kInTurn = kTurned;
  static uint8_t one(uint8_t c, uint8_t) { return c; }
  static uint8x16_t all(uint8x16_t c, uint8_t) { return c; }
};
struct Int8Codes : Dense<1, true> {  // unsigned with `flip`
  static uint8_t one(uint8_t c, uint8_t flip) { return static_cast<uint8_t>(c ^ flip); }
  static uint8x16_t all(uint8x16_t c, uint8_t flip) { return veorq_u8(c, vdupq_n_u8(flip)); }
};
template <bool kSwapped>
struct Fp8Codes : Dense<1> {  // NaN is carried by the scale
  static uint8_t one(uint8_t c, uint8_t) {
    if ((c & 0x7f) == 0x7f) return 0;
    return kSwapped ? static_cast<uint8_t>(c << 4 | c >> 4) : c;
  }
  static uint8x16_t all(uint8x16_t c, uint8_t) {
    const uint8x16_t nan = vceqq_u8(vandq_u8(c, vdupq_n_u8(0x7f)), vdupq_n_u8(0x7f));
    return vbicq_u8(kSwapped ? vsliq_n_u8(vshrq_n_u8(c, 4), c, 4) : c, nan);
  }
};
inline void zip(uint8x16_t& a, uint8x16_t& b, size_t size) {
  const uint8x16_t x = a, y = b;
  if (size == 1) {
    a = vzip1q_u8(x, y), b = vzip2q_u8(x, y);
  } else if (size == 2) {
    const uint16x8_t u = vreinterpretq_u16_u8(x), v = vreinterpretq_u16_u8(y);
    a = vreinterpretq_u8_u16(vzip1q_u16(u, v)), b = vreinterpretq_u8_u16(vzip2q_u16(u, v));
  } else {
    const uint32x4_t u = vreinterpretq_u32_u8(x), v = vreinterpretq_u32_u8(y);
    a = vreinterpretq_u8_u32(vzip1q_u32(u, v)), b = vreinterpretq_u8_u32(vzip2q_u32(u, v));
  }
}
// 16 / kSize inputs of as many outputs, turned: rows `stride` bytes apart in the file, inputs kNr *
// kSize bytes apart in the panel.
template <class Kept>
[[gnu::always_inline]] inline void turn(const uint8_t* from, size_t stride, uint8_t flip,
                                        uint8_t* out) {
  constexpr size_t kSize = Kept::kSize;
  constexpr int kCount = 16 / kSize;
  uint8x16_t v[kCount], t[kCount];
  _Pragma("GCC unroll 16") for (int i = 0; i < kCount; ++i) {
    const int each = kCount / 4,                            // vectors of outputs
        row = Kept::kInTurn ? i % each * 4 + i / each : i;  // which output comes i-th
    v[i] = Kept::all(vld1q_u8(from + static_cast<size_t>(row) * stride), flip);
  }
  _Pragma("GCC unroll 4") for (int round = 1; round < kCount; round *= 2) {
    _Pragma("GCC unroll 16") for (int i = 0; i < kCount / 2; ++i) {
      t[2 * i] = v[i], t[2 * i + 1] = v[i + kCount / 2];
      zip(t[2 * i], t[2 * i + 1], kSize);
    }
    _Pragma("GCC unroll 16") for (int i = 0; i < kCount; ++i) v[i] = t[i];
  }
  _Pragma("GCC unroll 16") for (int i = 0; i < kCount; ++i)
      vst1q_u8(out + static_cast<size_t>(i) * kNr * kSize, v[i]);
}

// Codes of inputs [k, end) of a group whose codes begin at `out` with input `k0`, one by one; what
// is past N or K is zero.
template <class Kept>
inline void pack_each(const PackArgs& a, size_t n, size_t k0, size_t k, size_t end, uint8_t flip,
                      uint8_t* out) {
  constexpr size_t kSize = Kept::kSize;
  const QuantMatrix& w = *a.w;
  for (; k < end; ++k)
    for (size_t i = 0; i < kNr; ++i) {
      uint8_t* to = out + ((k - k0) * kNr + place_of(*a.problem, i)) * kSize;
      if (n + i >= w.N || k >= w.K) {
        __builtin_memset(to, kSize == 1 && Kept::kInTurn ? 0x80 : 0, kSize);
        continue;
      }
      const size_t c = a.columns != nullptr ? static_cast<size_t>(a.columns[k]) : k;
      const uint8_t* from = w.codes + (n + i) * w.row_bytes + c * kSize;
      if constexpr (kSize == 1) {
        *to = Kept::one(*from, flip);
      } else {
        __builtin_memcpy(to, from, kSize);
      }
    }
}

inline bool has_nan(const PackArgs& a, size_t r, size_t k, size_t end) {
  const uint8_t* row = a.w->codes + r * a.w->row_bytes;
  bool nan = false;
  if (a.columns == nullptr) {
    uint8x16_t most = vdupq_n_u8(0);
    for (; k + 16 <= end; k += 16)
      most = vmaxq_u8(most, vandq_u8(vld1q_u8(row + k), vdupq_n_u8(0x7f)));
    nan = vmaxvq_u8(most) == 0x7f;
  }
  for (; k < end; ++k)
    nan |= (row[a.columns != nullptr ? static_cast<size_t>(a.columns[k]) : k] & 0x7f) == 0x7f;
  return nan;
}

inline void pack_scales(const PackArgs& a, const Shape& s, size_t n, size_t g, uint8_t* out) {
  const QuantMatrix& w = *a.w;
  __builtin_memset(out, 0, s.scale_bytes);
  const size_t k = g * s.group_k, end = k + s.group_k < w.K ? k + s.group_k : w.K;
  for (size_t i = 0; s.scale_bytes != 0 && i < kNr && n + i < w.N; ++i) {
    float scale = 1.0f;
    if (w.scale_type != ScaleType::kNone) {
      const size_t at =
          (n + i + w.n_phase) / (w.block_n == 0 ? 1 : w.block_n) * w.scale_stride + k / s.weight_k;
      decode_scales(w.scale_type, w.scales + scale_size(w.scale_type) * at, 1, &scale);
    }
    if (s.fp8 && has_nan(a, n + i, k, end)) scale = __builtin_nanf("");
    const auto bits = __builtin_bit_cast(uint32_t, scale);
    const auto half = static_cast<uint16_t>(bits >> 16);
    if (s.bf16) {
      __builtin_memcpy(out + 2 * i, &half, 2);
    } else {
      __builtin_memcpy(out + 4 * i, &bits, 4);
    }
  }
}

template <class Kept>
inline void pack_panel(const PackArgs& a, const Shape& s, size_t n, uint8_t* out) {
  constexpr size_t kSize = Kept::kSize, kCount = 16 / kSize;
  const QuantMatrix& w = *a.w;
  const bool straight = n + kNr <= w.N && a.columns == nullptr;
  const uint8_t flip = w.code == CodeType::kInt8 ? 0x80 : 0;
  for (size_t g = 0; g < s.groups; ++g, out += s.group_bytes()) {
    const size_t k0 = g * s.group_k, end = k0 + s.group_k;
    size_t k = k0;
    for (; straight && k + kCount <= end && k + kCount <= w.K; k += kCount)
      for (size_t i = 0; i < kNr; i += kCount)
        turn<Kept>(w.codes + (n + i) * w.row_bytes + k * kSize, w.row_bytes, flip,
                   out + ((k - k0) * kNr + i) * kSize);
    pack_each<Kept>(a, n, k0, k, end, flip, out);
    pack_scales(a, s, n, g, out + s.code_bytes);
  }
}
template <class Fp8Form>
inline void pack(const PackArgs& a) {
  const Shape s = shape_of(*a.problem);
  for (size_t n = a.n0; n < a.n1; n += kNr) {
    uint8_t* out = a.packed + (a.row0 + n) / kNr * s.stride();
    switch (s.size) {
      case 1:
        if (s.fp8) {
          pack_panel<Fp8Codes<!Fp8Form::kHalves>>(a, s, n, out);
        } else {
          pack_panel<Int8Codes>(a, s, n, out);
        }
        break;
      case 2:
        if (a.problem->code == CodeType::kBf16) {
          pack_panel<Dense<2, true>>(a, s, n, out);
        } else {
          pack_panel<Dense<2>>(a, s, n, out);
        }
        break;
      default:
        pack_panel<Dense<4>>(a, s, n, out);
        break;
    }
  }
}

// ---------------------------------------------------------------------------------------------- panels

// How far the exponents of a row can be raised, at most by `most`.
inline int headroom_of(const float* x, size_t K, int most) {
  uint32_t top = 0;
  for (size_t k = 0; k < K; ++k) {
    const uint32_t b = f32_bits(x[k]) & 0x7fffffffu;
    top = b > top ? b : top;
  }
  if (top >= 0x7f800000u) return 0;  // NaN or infinity: so are the outputs
  const int headroom = 127 - (static_cast<int>(top >> 23) - 127);
  return headroom > most ? most : headroom;
}
inline float power_of_two(int e) { return f32_from_bits(static_cast<uint32_t>(127 + e) << 23); }

// One row into its tile: value(k, c) of input k in column c; `step` floats from input to input.
template <class Value>
inline void put_row(const RowPanelArgs& a, const Shape& s, const Value& value, float* to,
                    size_t step) {
  const size_t K = a.problem->K;
  const int32_t* columns = a.w->columns;
  size_t k = 0;
  for (; k < K; ++k, to += step)
    *to = value(columns != nullptr ? static_cast<size_t>(columns[k]) : k);
  for (; k < s.K_padded; ++k, to += step) *to = 0.0f;
}
inline bool all_f16(const float* x, float by, size_t K) {
  uint32x4_t same = vdupq_n_u32(0xffffffffu);
  const auto look = [&](float32x4_t v) {
    same = vandq_u32(same, vceqq_f32(vcvt_f32_f16(vcvt_f16_f32(v)), v));
  };
  size_t k = 0;
  for (; k + 4 <= K; k += 4) look(vmulq_n_f32(vld1q_f32(x + k), by));
  for (; k < K; ++k) look(vdupq_n_f32(x[k] * by));
  return vminvq_u32(same) != 0;
}

// Rows as they are, all columns in order, times `by`, then zeros: four rows of a tile at a time.
inline void put_four(const float* const (&rows)[4], const float (&by)[4], size_t K, size_t K_padded,
                     float* to, size_t step) {
  size_t k = 0;
  for (; k + 4 <= K; k += 4, to += 4 * step) {
    const auto row = [&](int i) { return vmulq_n_f32(vld1q_f32(rows[i] + k), by[i]); };
    const float32x4x2_t even = vzipq_f32(row(0), row(2)), odd = vzipq_f32(row(1), row(3));
    for (int half = 0; half < 2; ++half) {
      const float32x4x2_t v = vzipq_f32(even.val[half], odd.val[half]);
      vst1q_f32(to + static_cast<size_t>(2 * half) * step, v.val[0]);
      vst1q_f32(to + static_cast<size_t>(2 * half + 1) * step, v.val[1]);
    }
  }
  for (; k < K; ++k, to += step)
    for (size_t i = 0; i < 4; ++i) to[i] = rows[i][k] * by[i];
  for (; k < K_padded; ++k, to += step) vst1q_f32(to, vdupq_n_f32(0));
}

template <class Fp8Form>
inline void make_row_panel(const RowPanelArgs& a) {
  const Problem& p = *a.problem;
  const Shape s = shape_of(p);
  const PanelLayout l = panel_layout(s, a.M);
  const PreparedLayout row = prepared_layout(p);
  auto* values = reinterpret_cast<float*>(a.panel);
  bool f16 = a.M <= kTile && (p.code == CodeType::kF16 || (s.fp8 && Fp8Form::kHalves));
  const float* four[4] = {};
  float four_by[4] = {};
  __builtin_memset(values + a.M / kTile * kTile * s.K_padded, 0,
                   4 * (panel_rows(a.M) - a.M / kTile * kTile) * s.K_padded);
  for (size_t m = 0; m < a.M; ++m) {
    const uint8_t* from =
        a.rows + (a.ids != nullptr ? static_cast<size_t>(a.ids[m]) : m) * row.row_bytes;
    const auto scale = [&](size_t g) {
      float v;
      __builtin_memcpy(&v, from + 4 * g, 4);
      return v;
    };
    const size_t tile = m / kTile * kTile,
                 step = panel_rows(a.M - tile < kTile ? a.M - tile : kTile);
    float* to = values + tile * s.K_padded + (m - tile);
    float by = 1.0f;
    if (s.as_is) {
      const auto* x = reinterpret_cast<const float*>(from + row.codes);
      const int larger = s.fp8 ? headroom_of(x, p.K, Fp8Form::kSmall) : 0;
      const float larger_by = power_of_two(larger);
      if (step == 1 && a.w->columns == nullptr) {
        for (size_t k = 0; k < p.K; ++k) to[k] = x[k] * larger_by;
      } else if (step >= 4 && a.w->columns == nullptr) {
        const size_t last = m % 4;
        four[last] = x, four_by[last] = larger_by;
        if (last == 3 || m + 1 == a.M) {  // rows that are not there: nobody looks at them
          for (size_t i = last + 1; i < 4; ++i) four[i] = x, four_by[i] = 0.0f;
          put_four(four, four_by, p.K, s.K_padded, to - last, step);
        }
      } else {
        put_row(
            a, s, [&](size_t c) { return x[c] * larger_by; }, to, step);
      }
      f16 = f16 && all_f16(x, larger_by, p.K);
      if (s.fp8) by = power_of_two(Fp8Form::kSmall - larger);
    } else {
      const uint8_t* codes = from + row.codes;
      const float larger_by = s.fp8 ? power_of_two(Fp8Form::kCodesRaised) : 1.0f;
      if (p.act.code == ActCode::kFp8) {
        put_row(
            a, s, [&](size_t c) { return e4m3_to_f32(codes[c]) * larger_by; }, to, step);
      } else {
        put_row(
            a, s, [&](size_t c) { return e2m1_to_f32(codes[c]) * larger_by; }, to, step);
      }
      if (p.act.granule == ActGranule::kRow) by = scale(0);
      if (p.act.granule == ActGranule::kStatic && scale(0) != scale(0)) by = scale(0);
    }
    __builtin_memcpy(a.panel + l.factors + 4 * m, &by, 4);
    for (size_t g = 0; s.row_groups && g < s.groups; ++g) {
      const float v = scale(g * s.group_k / s.row_k);
      __builtin_memcpy(a.panel + l.group_factors + 4 * (g * a.M + m), &v, 4);
    }
  }
  const float flag = f16 ? 1.0f : 0.0f;
  __builtin_memcpy(a.panel + l.all_f16, &flag, 4);
}

}  // namespace float_family
}  // namespace
}  // namespace moebius
#endif  // __aarch64__
