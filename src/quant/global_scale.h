// SPDX-License-Identifier: Apache-2.0
// The global scale of NVFP4, above the block scales of a matrix or of its input. compressed-tensors
// stores a divisor, ModelOpt a factor: each is kept as stored, because a reciprocal is another
// number. This is the one place that knows the difference.
#pragma once
#include "base/numeric.h"

namespace moebius {

struct GlobalScale {
  float value = 1.0f;
  bool multiplies = false;
  bool operator==(const GlobalScale&) const = default;
};

// What stands under a scale, with it: a finished sum, a block scale.
MOEBIUS_ALWAYS_INLINE float with_scale(float v, GlobalScale g) {
  if (g.value == 1.0f) return v;
  return g.multiplies ? v * g.value : v / g.value;
}
// The other way: a block's largest number as the block scale sees it.
MOEBIUS_ALWAYS_INLINE float without_scale(float v, GlobalScale g) {
  return g.multiplies ? v / g.value : v * g.value;
}
// Both sides of a product have one; both multiply or both divide.
MOEBIUS_ALWAYS_INLINE GlobalScale both_scales(GlobalScale x, GlobalScale w) {
  return {x.value * w.value, w.multiplies};
}

}  // namespace moebius
