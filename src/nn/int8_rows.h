// SPDX-License-Identifier: Apache-2.0
// Rounds dense weights to int8 with one scale per output: s = amax / 127, q = RNE(w / s).
#pragma once
#include <vector>

#include "quant/quant_matrix.h"

namespace moebius {

// Returns the facts of a dense matrix after rounding; codes and scales are null.
QuantMatrix int8_facts(const QuantMatrix& dense);

// Owns rounded rows. A row that is not finite has the scale NaN.
struct Int8Rows {
  explicit Int8Rows(const QuantMatrix& dense);
  Int8Rows(const Int8Rows&) = delete;
  Int8Rows& operator=(const Int8Rows&) = delete;

  std::vector<int8_t> codes;  // [N, K]
  std::vector<float> scales;  // [N]
  QuantMatrix w;
};

}  // namespace moebius
