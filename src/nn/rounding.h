// SPDX-License-Identifier: Apache-2.0
// Activations between layers have a declared type; they are held as f32 values that are exact in it.
#pragma once
#include <cstddef>

#include "base/numeric.h"
#include "kernels/kernel.h"

namespace moebius {

inline float round_to(float v, XType type) {
  switch (type) {
    case XType::kBf16: return bf16_to_f32(f32_to_bf16(v));
    case XType::kF16: return f16_to_f32(f32_to_f16(v));
    case XType::kF32: break;
  }
  return v;
}

void round_to(float* v, size_t n, XType type) noexcept;  // in place

}  // namespace moebius
