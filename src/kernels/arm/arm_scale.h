// SPDX-License-Identifier: Apache-2.0
// Applies a global scale to four sums, like with_scale of quant/global_scale.h; loads scales of a
// panel.
#pragma once
#ifdef MOEBIUS_KERNEL_BODIES
#include <arm_neon.h>

#include "kernels/kernel.h"

namespace moebius {
namespace {

[[gnu::always_inline]] inline float32x4_t with_scale(float32x4_t v, GlobalScale g) {
  if (g.value == 1.0f) return v;
  return g.multiplies ? vmulq_n_f32(v, g.value) : vdivq_f32(v, vdupq_n_f32(g.value));
}

// Returns the scales of 8 outputs as four vectors [s0,s1,s0,s1], times `factor` (the static scale
// of activations, or 1). supers: null, or the second level.
[[gnu::always_inline]] inline void pair_scales(const uint8_t* p, bool bf16, const uint8_t* supers,
                                               float factor, float32x4_t (&s)[4]) {
  float32x4_t lo, hi;
  if (bf16) {
    const uint16x8_t h = vreinterpretq_u16_u8(vld1q_u8(p));
    lo = vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(h), 16));
    hi = vreinterpretq_f32_u32(vshll_high_n_u16(h, 16));
  } else if (supers != nullptr) {
    const int16x8_t h = vmovl_s8(vreinterpret_s8_u8(vld1_u8(p)));
    lo = vmulq_f32(vcvtq_f32_s32(vmovl_s16(vget_low_s16(h))),
                   vreinterpretq_f32_u8(vld1q_u8(supers)));
    hi = vmulq_f32(vcvtq_f32_s32(vmovl_high_s16(h)), vreinterpretq_f32_u8(vld1q_u8(supers + 16)));
  } else {
    lo = vreinterpretq_f32_u8(vld1q_u8(p));
    hi = vreinterpretq_f32_u8(vld1q_u8(p + 16));
  }
  if (factor != 1.0f) {
    lo = vmulq_n_f32(lo, factor);
    hi = vmulq_n_f32(hi, factor);
  }
  const float64x2_t l = vreinterpretq_f64_f32(lo), h = vreinterpretq_f64_f32(hi);
  s[0] = vreinterpretq_f32_f64(vzip1q_f64(l, l));
  s[1] = vreinterpretq_f32_f64(vzip2q_f64(l, l));
  s[2] = vreinterpretq_f32_f64(vzip1q_f64(h, h));
  s[3] = vreinterpretq_f32_f64(vzip2q_f64(h, h));
}

[[gnu::always_inline]] inline void pair_offsets(const uint8_t* p, bool bf16, const uint8_t* supers,
                                                float32x4_t (&b)[4]) {
  pair_scales(p, bf16, supers == nullptr ? nullptr : supers + 32, 1.0f, b);
}

}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
