// SPDX-License-Identifier: Apache-2.0
#include "nn/recurrent.h"

#include <algorithm>
#include <cstring>

#include "kernels/row_functions.h"

namespace moebius {

float* begin_run(const RecurrentRun& run, size_t at, size_t floats) noexcept {
  float* S = run.to + at;
  if (run.from == nullptr)
    std::fill_n(S, floats, 0.0f);
  else if (run.from != run.to)
    std::memcpy(S, run.from + at, floats * sizeof(float));
  return S;
}

void advance_state(float* S, size_t rows, size_t width, float decay, const float* b, const float* x,
                   const float* c, float* y) noexcept {
  const RowFunctions& f = row_functions();
  std::fill_n(y, width, 0.0f);
  for (size_t n = 0; n < rows; ++n, S += width) {
    f.scale(S, decay, width);
    f.fma(S, b[n], x, width);
    f.fma(y, c[n], S, width);
  }
}

}  // namespace moebius
