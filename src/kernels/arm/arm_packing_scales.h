// SPDX-License-Identifier: Apache-2.0
// Reads scales and zero points of the 8 outputs of a panel, for the packers of Arm families that
// store scales as 8 x bf16 or 8 x f32. Internal linkage, plain NEON.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "base/numeric.h"
#include "kernels/arm/arm_packing.h"

namespace moebius {
namespace {
namespace arm_packing {

// Scales of 8 outputs in one group: 8 x bf16, or 8 x f32.
struct Scales {
  uint8x16_t v[2];
};

// Converts f16 scales of 8 outputs to f32.
inline Scales from_f16(uint16x8_t halves) {
  if (vmaxvq_u16(vandq_u16(halves, vdupq_n_u16(0x7fff))) < 0x7c00) {
    const float16x8_t v = vreinterpretq_f16_u16(halves);
    return {{vreinterpretq_u8_f32(vcvt_f32_f16(vget_low_f16(v))),
             vreinterpretq_u8_f32(vcvt_high_f32_f16(v))}};
  }
  uint16_t from[kOutputs];
  float to[kOutputs];
  vst1q_u16(from, halves);
  for (size_t i = 0; i < kOutputs; ++i) to[i] = f16_to_f32(from[i]);
  return {{vreinterpretq_u8_f32(vld1q_f32(to)), vreinterpretq_u8_f32(vld1q_f32(to + 4))}};
}
// Transposes four groups of f32 scales.
[[gnu::always_inline]] inline void transpose_words(const uint8_t* const (&rows)[kOutputs], size_t g,
                                                   Scales* out) {
  MOEBIUS_UNROLL for (int h = 0; h < 2; ++h) {
    uint32x4_t r[4];
    MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) r[i] =
        vreinterpretq_u32_u8(vld1q_u8(rows[4 * h + i] + 4 * g));
    const uint32x4_t a = vzip1q_u32(r[0], r[2]), b = vzip2q_u32(r[0], r[2]),
                     c = vzip1q_u32(r[1], r[3]), d = vzip2q_u32(r[1], r[3]);
    out[0].v[h] = vreinterpretq_u8_u32(vzip1q_u32(a, c));
    out[1].v[h] = vreinterpretq_u8_u32(vzip2q_u32(a, c));
    out[2].v[h] = vreinterpretq_u8_u32(vzip1q_u32(b, d));
    out[3].v[h] = vreinterpretq_u8_u32(vzip2q_u32(b, d));
  }
}

// Scales of the outputs from n on in groups [g, g1). They are made for kChunk groups (from a
// multiple of it on) before the codes of these groups are packed. Outputs past N repeat the last
// one.
class PanelScales {
 public:
  static constexpr size_t kChunk = 128;
  PanelScales(const QuantMatrix& w, const ScaleRows& rows, size_t n) : w_(w), rows_(rows), n_(n) {}

  void make_scales(size_t g, size_t g1, Scales* out) const {
    const size_t size = scale_size(w_.scale_type);
    const bool side_by_side =  // true for a single group
        w_.block_n == 1 && w_.scale_stride == 1 && n_ + kOutputs <= w_.N;
    if (side_by_side && w_.scale_type == ScaleType::kBf16) {
      out->v[0] = vld1q_u8(w_.scales + 2 * rows_.at[0]);
      return;
    }
    const uint8_t* from[kOutputs];
    for (size_t i = 0; i < kOutputs; ++i) from[i] = w_.scales + rows_.at[i] * size;
    const size_t there = scales_there(w_, rows_);
    while (g < g1) {
      const size_t made = several_scales(from, g, there, kChunk - g % kChunk, out);
      if (made == 0) *out = scales_at(g);
      const size_t step = made == 0 ? 1 : made;
      g += step;
      out += step;
    }
  }
  void make_zeros(size_t g, size_t g1, uint8x8_t* out) const {
    const uint8_t* from[kOutputs];
    for (size_t i = 0; i < kOutputs; ++i)
      from[i] = reinterpret_cast<const uint8_t*>(w_.zero_points) + rows_.at[i];
    for (; g + 8 <= g1; g += 8, out += 8) {
      uint8x16_t v[4];
      transpose_bytes(from, g, v);
      MOEBIUS_UNROLL for (int i = 0; i < 4; ++i) out[2 * i] = vget_low_u8(v[i]),
                                                         out[2 * i + 1] = vget_high_u8(v[i]);
    }
    for (; g < g1; ++g, ++out) {
      uint64_t v = 0;
      for (size_t i = 0; i < kOutputs; ++i) v |= uint64_t{from[i][g]} << (8 * i);
      *out = vcreate_u8(v);
    }
  }

 private:
  // Converts as many groups as a row has from g on (`there` in all) and as fit; returns their
  // number.
  size_t several_scales(const uint8_t* const (&from)[kOutputs], size_t g, size_t there,
                        size_t headroom, Scales* out) const {
    const size_t most = there - g < headroom ? there - g : headroom;
    auto* to = reinterpret_cast<uint16x8_t*>(out);
    switch (w_.scale_type) {
      case ScaleType::kF32:
        if (most < 4) return 0;
        transpose_words(from, g, out);
        return 4;
      case ScaleType::kFp8:
      case ScaleType::kE8m0:
        if (most >= 16 && transpose_scales<8, 2>(w_.scale_type, from, g, to)) return 16;
        return most >= 8 && transpose_scales<4, 2>(w_.scale_type, from, g, to) ? 8 : 0;
      case ScaleType::kBf16:
      case ScaleType::kF16: {
        if (most < 8) return 0;
        uint16x8_t v[8];
        transpose_halves(from, g, v);
        MOEBIUS_UNROLL for (size_t i = 0; i < 8; ++i) to[2 * i] = v[i];
        for (size_t i = 0; w_.scale_type == ScaleType::kF16 && i < 8; ++i) out[i] = from_f16(v[i]);
        return 8;
      }
      default:
        return 0;
    }
  }
  Scales scales_at(size_t g) const {
    if (w_.scale_type == ScaleType::kF32 || w_.scale_type == ScaleType::kNone) {
      uint32_t v[kOutputs];
      for (size_t i = 0; i < kOutputs; ++i) {
        v[i] = f32_bits(1.0f);
        if (w_.scale_type == ScaleType::kF32)
          __builtin_memcpy(&v[i], w_.scales + 4 * (rows_.at[i] + g), 4);
      }
      uint64x2_t pairs[2];
      for (size_t i = 0; i < 2; ++i)
        pairs[i] = vcombine_u64(vcreate_u64(v[4 * i] | uint64_t{v[4 * i + 1]} << 32),
                                vcreate_u64(v[4 * i + 2] | uint64_t{v[4 * i + 3]} << 32));
      return {{vreinterpretq_u8_u64(pairs[0]), vreinterpretq_u8_u64(pairs[1])}};
    }
    const uint16x8_t v = scales_of(w_, rows_.at, g);
    if (w_.scale_type == ScaleType::kF16) return from_f16(v);
    return {{vreinterpretq_u8_u16(v), vdupq_n_u8(0)}};
  }

  const QuantMatrix& w_;
  const ScaleRows& rows_;
  const size_t n_;
};

}  // namespace arm_packing
}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
