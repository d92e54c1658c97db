// SPDX-License-Identifier: Apache-2.0
// Applies a global scale to four sums, like with_scale of quant/global_scale.h.
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

}  // namespace
}  // namespace moebius
#endif  // MOEBIUS_KERNEL_BODIES
