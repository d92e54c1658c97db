// SPDX-License-Identifier: Apache-2.0
// Scales that lose the least: for every granule the one of some candidates around the scale of
// round-to-nearest for which sum_k h_k (w_k - q_k s)^2 is smallest.
#pragma once
#include "quantize/module_encoder.h"

namespace moebius {

// h [K]: how much every input counts, the mean of its squares; null: all alike. The scale of
// round-to-nearest is among the candidates and wins ties. Granules of several rows keep theirs.
ScaleTable searched_scales(const MatrixSource& source, const QuantArgs& weights,
                           const EncodeRules& rules, const float* h);

// Codes [N,K] by rounding to the nearest, for scales that are given.
std::vector<uint8_t> nearest_codes(const MatrixSource& source, const EncodeRules& rules,
                                   const ScaleTable& table);

// Relative loss of a matrix: sqrt(sum h (w - q)^2 / sum h w^2).
double relative_loss(const MatrixSource& source, const EncodeRules& rules, const ScaleTable& table,
                     const std::vector<uint8_t>& codes, const float* h);

}  // namespace moebius
