// SPDX-License-Identifier: Apache-2.0
// Normalizations of rows: x / sqrt(mean(x^2) + eps) and its published variants, computed in f32
// with one fixed order of sums.
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/row_functions.h"  // NormKind

namespace moebius {

struct Norm {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-6f;
  std::vector<float> weight, bias;  // [n] each, or empty
};

// Normalizes M rows of n floats, which are ldx and ldy floats apart, and rounds to `type`. y may be
// the memory of x.
void normalize(const Norm& norm, XType type, const float* x, size_t ldx, float* y, size_t ldy,
               size_t M, size_t n) noexcept;

}  // namespace moebius
