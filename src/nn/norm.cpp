// SPDX-License-Identifier: Apache-2.0
#include "nn/norm.h"

namespace moebius {

void normalize(const Norm& norm, XType type, const float* x, size_t ldx, float* y, size_t ldy,
               size_t M, size_t n) noexcept {
  const RowNorm row{norm.kind, type, norm.epsilon, norm.weight.data(),
                    norm.bias.empty() ? nullptr : norm.bias.data()};
  const RowFunctions& rows = row_functions();
  for (size_t m = 0; m < M; ++m) rows.normalize(row, x + m * ldx, y + m * ldy, n);
}

}  // namespace moebius
