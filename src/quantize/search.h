// SPDX-License-Identifier: Apache-2.0
// Searches for scales: for each granule, the one of several candidates around the round-to-nearest
// scale for which sum_k h_k (w_k - q_k s)^2 is smallest.
#pragma once
#include "quantize/module_encoder.h"

namespace moebius {

// Returns the best scales. h [K]: weight of each input, the mean of its squares; null: all equal.
// The round-to-nearest scale is a candidate and wins ties; granules of several rows always keep it.
ScaleTable searched_scales(const MatrixSource& source, const QuantArgs& weights,
                           const EncodeRules& rules, const float* h);

// Returns the codes [N,K] by rounding to nearest, for given scales.
std::vector<uint8_t> nearest_codes(const MatrixSource& source, const EncodeRules& rules,
                                   const ScaleTable& table);

// Returns the relative loss of a matrix, sqrt(sum h (w - q)^2 / sum h w^2).
double relative_loss(const MatrixSource& source, const EncodeRules& rules, const ScaleTable& table,
                     const std::vector<uint8_t>& codes, const float* h);

}  // namespace moebius
