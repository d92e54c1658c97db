// SPDX-License-Identifier: Apache-2.0
// Defines the arithmetic of row operations (device/rows.h) on single numbers, which the CPU, the
// GPU's interpreter of lists (device/cuda/device_rows.h) and its kernels for usual lists
// (plugins/cuda/usual_rows.cuh) share, so that results have the same bytes everywhere. Functions
// that are not here are in base/math_functions.h.
#pragma once
#include <algorithm>
#include <cmath>

#include "base/math_functions.h"
#include "device/rows.h"

namespace moebius {

// Returns the factor by which an operation scales a row at this position; of kHeadScale, the
// logarithm that its values multiply. Runs on the host: the GPU reads it from a table.
inline float position_factor(RowOpKind kind, const RowOp::Temperature& t, size_t position) {
  const float part = (static_cast<float>(position) + t.first) / t.floor;
  switch (kind) {
    case RowOpKind::kTemperature:
      return 1 + t.scale * std::log1p(std::floor(part));
    case RowOpKind::kLogGrowth:
      return 1 + t.scale * std::log(std::max(part, 1.0f));
    case RowOpKind::kPower:
      return std::exp(t.scale * std::log1p(part));
    default:
      return std::log(static_cast<float>(position + 1));
  }
}

// Returns the factor of a norm whose `count` numbers have this sum of squares.
MOEBIUS_ALWAYS_INLINE float norm_factor(float square, float count, float epsilon) {
  return 1.0f / __builtin_sqrtf(square / count + epsilon);
}
// Returns a number after a norm of any kind but kLayer. round(x) rounds to the type of activations;
// `weight` is not read by kRmsPlain.
template <class Round>
MOEBIUS_ALWAYS_INLINE float normed_number(NormKind kind, float factor, float weight, float v,
                                          Round round) {
  const float by = kind == NormKind::kRmsOnePlus ? 1.0f + weight : weight;
  float z = v * factor;
  if (kind == NormKind::kRms) z = round(z);
  return round(kind == NormKind::kRmsPlain ? z : z * by);
}

// Turns the pair (a, b) by an angle with this cosine and sine.
template <class Round>
MOEBIUS_ALWAYS_INLINE void turn_pair(float& a, float& b, float cosine, float sine, Round round) {
  const float first = round(a * cosine - b * sine);
  b = round(b * cosine + a * sine);
  a = first;
}

}  // namespace moebius
