// SPDX-License-Identifier: Apache-2.0
// The global scale of NVFP4, which is applied on top of the block scales of a matrix or of its
// input. compressed-tensors stores a divisor, ModelOpt a factor: each is kept as stored, because a
// reciprocal rounds to another number. All code that tells them apart is in this file.
#pragma once
#include "base/numeric.h"

namespace moebius {

struct GlobalScale {
  float value = 1.0f;
  bool multiplies = false;
  bool operator==(const GlobalScale&) const = default;
};

// Applies the global scale to a value that lacks it, such as an accumulated sum or a block scale.
MOEBIUS_ALWAYS_INLINE float with_scale(float v, GlobalScale g) {
  if (g.value == 1.0f) return v;
  return g.multiplies ? v * g.value : v / g.value;
}
// Undoes with_scale: removes the global scale from a block's maximum before the block scale is
// computed.
MOEBIUS_ALWAYS_INLINE float without_scale(float v, GlobalScale g) {
  return g.multiplies ? v / g.value : v * g.value;
}
// Returns the product of the global scales of x and w. Both must multiply, or both divide.
MOEBIUS_ALWAYS_INLINE GlobalScale both_scales(GlobalScale x, GlobalScale w) {
  return {x.value * w.value, w.multiplies};
}

}  // namespace moebius
