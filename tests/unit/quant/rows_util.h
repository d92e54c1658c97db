// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "quant/global_scale.h"
#include "quant/reference.h"

namespace moebius {

// Writes the numbers that quantized rows represent: code value * scale (/ G_x), out [M,K].
inline void dequantize_rows(const QuantRows& x, float* out) {
  for (size_t m = 0; m < x.M; ++m)
    for (size_t k = 0; k < x.K; ++k) {
      const float value = row_code_value(x, m, k);
      if (x.spec.code == ActCode::kAsIs) {
        out[m * x.K + k] = value;
        continue;
      }
      const size_t g = x.spec.granule == ActGranule::kGroup ? k / x.spec.group : 0;
      const float s = x.scales[m * x.groups + g];
      const bool two_level = x.spec.scale == ActScale::kFp8;
      out[m * x.K + k] = value * (two_level ? with_scale(s, x.params.global_scale) : s);
    }
}

}  // namespace moebius
