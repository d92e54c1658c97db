// SPDX-License-Identifier: Apache-2.0
// Float weights on Arm at their stored width: packs weights and makes panels of rows (layouts:
// arm_float.h). Internal linkage.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_float.h"
#include "kernels/arm/arm_float_straight.h"

namespace moebius {
namespace {
namespace float_family {

// --- weights ---

// Packs codes of inputs [k, end) one by one, for a group whose codes begin at `out` with input
// `k0`; those past N or K are zero.
template <class Codec>
inline void pack_each(const PackArgs& a, size_t n, size_t k0, size_t k, size_t end, uint8_t* out) {
  constexpr size_t kSize = Codec::kSize;
  const QuantMatrix& w = *a.w;
  for (; k < end; ++k)
    for (size_t place = 0; place < kNr; ++place) {
      uint8_t* to = out + ((k - k0) * kNr + place) * kSize;
      const size_t r = n + Codec::kOrder.output(place);
      if (r >= w.N || k >= w.K) {
        __builtin_memset(to, Codec::kNothing, kSize);
        continue;
      }
      const size_t c = a.columns != nullptr ? static_cast<size_t>(a.columns[k]) : k;
      const uint8_t* from = w.codes + r * w.row_bytes + c * kSize;
      if constexpr (kSize == 1) {
        *to = Codec::one(*from);
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

template <class Codec>
class PanelPacker {
 public:
  PanelPacker(const PackArgs& a, const Shape& s, size_t n, uint8_t* out)
      : a_(a), s_(s), w_(*a.w), n_(n), out_(out) {}
  void pack() {
    constexpr size_t kBlock = PanelRows::kBlock, kInputs = kBlock / Codec::kSize;
    const bool whole_blocks = s_.groups == 1 || s_.group_k * Codec::kSize % kBlock == 0;
    // Rows are read side by side, in the order of the file.
    const bool straight = n_ + kNr <= w_.N && a_.columns == nullptr && whole_blocks &&
                          w_.K * Codec::kSize / kBlock >= PanelRows::kBlocks;
    alignas(64) uint8_t lines[PanelRows::kBlocks * PanelRows::kPut];
    PanelRows rows(w_.codes + n_ * w_.row_bytes, w_.row_bytes, w_.K / kInputs, lines);
    for (size_t g = 0; g < s_.groups; ++g) {
      const size_t k = g * s_.group_k, end = k + s_.group_k < w_.K ? k + s_.group_k : w_.K;
      uint8_t* const out = out_ + g * s_.group_bytes();
      size_t done = 0;  // inputs, without NaN
      if (straight) {
        Seen seen;
        rows.template put<Codec>((end - k) / kInputs, out, seen);
        if (!seen.nan()) done = (end - k) / kInputs * kInputs;
      }
      pack_each<Codec>(a_, n_, k, k + done, k + s_.group_k, out);
      if (s_.scale_bytes != 0) put_scales(g, done == end - k, out + s_.code_bytes);
    }
  }

 private:
  static constexpr size_t kChunk = PanelScales::kChunk;  // groups whose scales are made at once
  static constexpr size_t kParts = kNr / kOutputs;

  // no_nan: the codes of the group were examined and have no NaN.
  void put_scales(size_t g, bool no_nan, uint8_t* out) {
    const size_t size = s_.scale_bytes / kNr, k = g * s_.group_k;
    for (size_t i = 0; i < kParts; ++i) {
      if (g % kChunk == 0)
        PanelScales(w_, n_ + i * kOutputs, s_.group_k, s_.weight_k)
            .make_scales(g, g + kChunk < s_.groups ? g + kChunk : s_.groups, scales_[i]);
      const Scales& v = scales_[i][g % kChunk];
      if (s_.bf16) {
        store_in_order<1>(out + 16 * i, {v.v[0]});
      } else {
        store_in_order(out + 32 * i, v.v);
      }
    }
    if (n_ + kNr > w_.N) __builtin_memset(out + (w_.N - n_) * size, 0, (n_ + kNr - w_.N) * size);
    if (!s_.fp8 || no_nan) return;
    const size_t end = k + s_.group_k < w_.K ? k + s_.group_k : w_.K;
    const uint32_t nan = f32_bits(__builtin_nanf("")) >> (s_.bf16 ? 16 : 0);
    for (size_t i = 0; i < kNr && n_ + i < w_.N; ++i)
      if (has_nan(a_, n_ + i, k, end)) __builtin_memcpy(out + i * size, &nan, size);
  }

  const PackArgs& a_;
  const Shape& s_;
  const QuantMatrix& w_;
  const size_t n_;
  uint8_t* const out_;
  Scales scales_[kParts][kChunk];
};

template <class Codec>
inline void pack_rows(const PackArgs& a, const Shape& s) {
  for (size_t n = a.n0; n < a.n1; n += kNr)
    PanelPacker<Codec>(a, s, n, a.packed + (a.row0 + n) / kNr * s.stride()).pack();
}
template <class Fp8Form>
inline void pack(const PackArgs& a) {
  const Shape s = shape_of(*a.problem);
  switch (a.w->code) {
    case CodeType::kFp8:
      return pack_rows<E4m3<!Fp8Form::kHalves>>(a, s);
    case CodeType::kInt8:
      return pack_rows<OffsetBytes<0x80>>(a, s);
    case CodeType::kInt8Offset:
      return pack_rows<OffsetBytes<0>>(a, s);
    case CodeType::kBf16:
      return pack_rows<AsStored<CodeType::kBf16>>(a, s);
    case CodeType::kF32:
      return pack_rows<AsStored<CodeType::kF32>>(a, s);
    default:
      return pack_rows<AsStored<CodeType::kF16>>(a, s);
  }
}

// --- panels ---

// Returns by how much the exponents of a row can be raised, at most `most`.
inline int headroom_of(const float* x, size_t K, int most) {
  uint32_t top = 0;
  for (size_t k = 0; k < K; ++k) {
    const uint32_t b = f32_bits(x[k]) & 0x7fffffffu;
    top = b > top ? b : top;
  }
  if (top >= 0x7f800000u) return 0;  // NaN or infinity: the outputs are, too
  const int headroom = 127 - (static_cast<int>(top >> 23) - 127);
  return headroom > most ? most : headroom;
}
inline float power_of_two(int e) { return f32_from_bits(static_cast<uint32_t>(127 + e) << 23); }

// Writes one row into its tile: value(k, c) returns input k, which is column c; `step`: floats from
// input to input.
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

// Writes four rows into a tile: all columns in order, times `by`, then zeros.
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
        four[last] = x;
        four_by[last] = larger_by;
        if (last == 3 || m + 1 == a.M) {  // missing rows of the tile are not read
          for (size_t i = last + 1; i < 4; ++i) {
            four[i] = x;
            four_by[i] = 0.0f;
          }
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
#endif  // MOEBIUS_KERNEL_BODIES
