// SPDX-License-Identifier: Apache-2.0
// Normalizations of rows: x_hat = x / sqrt(mean(x^2) + eps) and its published variants. f32 inside,
// one fixed order of sums.
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/row_functions.h"  // NormKind

namespace moebius {

struct Norm {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-6f;
  std::vector<float> weight, bias;  // [n]
};

// y[M,n] from x[M,n] (may be the same memory); rows `ldx` and `ldy` apart.
void normalize(const Norm& norm, XType type, const float* x, size_t ldx, float* y, size_t ldy,
               size_t M, size_t n) noexcept;

}  // namespace moebius
