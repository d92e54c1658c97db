// SPDX-License-Identifier: Apache-2.0
// Sums run in sixteen lanes that are added in a fixed order, so a row's result depends on nothing
// but the row.
#include "nn/norm.h"

#include <cmath>

#include "base/numeric.h"
#include "nn/ops.h"

namespace moebius {
namespace {

constexpr size_t kLanes = 16;

template <class Term>
float lane_sum(size_t n, Term term) {
  float lane[kLanes] = {};
  size_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (size_t l = 0; l < kLanes; ++l) lane[l] += term(i + l);
  for (size_t l = 0; i < n; ++i, ++l) lane[l] += term(i);
  for (size_t step = kLanes / 2; step > 0; step /= 2)
    for (size_t l = 0; l < step; ++l) lane[l] += lane[l + step];
  return lane[0];
}

void rms_row(const Norm& norm, XType type, const float* x, float* y, size_t n) {
  const float mean = sum_of_squares(x, n) / static_cast<float>(n);
  const float r = 1.0f / std::sqrt(mean + norm.epsilon);
  if (norm.kind == NormKind::kRms && type == XType::kBf16)
    return scale_in_bf16(x, r, norm.weight.data(), y, n);
  switch (norm.kind) {
    case NormKind::kRms:
      for (size_t i = 0; i < n; ++i) y[i] = x[i] * r;
      round_to(type, y, n);
      for (size_t i = 0; i < n; ++i) y[i] *= norm.weight[i];
      break;
    case NormKind::kRmsFused:
      for (size_t i = 0; i < n; ++i) y[i] = x[i] * r * norm.weight[i];
      break;
    case NormKind::kRmsOnePlus:
      for (size_t i = 0; i < n; ++i) y[i] = x[i] * r * (1.0f + norm.weight[i]);
      break;
    default:
      for (size_t i = 0; i < n; ++i) y[i] = x[i] * r;
      break;
  }
  round_to(type, y, n);
}

void layer_row(const Norm& norm, XType type, const float* x, float* y, size_t n) {
  const auto count = static_cast<float>(n);
  const float mean = lane_sum(n, [&](size_t i) { return x[i]; }) / count;
  const float var = lane_sum(n, [&](size_t i) { return (x[i] - mean) * (x[i] - mean); }) / count;
  const float r = 1.0f / std::sqrt(var + norm.epsilon);
  for (size_t i = 0; i < n; ++i)
    y[i] = std::fma((x[i] - mean) * r, norm.weight[i], norm.bias.empty() ? 0.0f : norm.bias[i]);
  round_to(type, y, n);
}

}  // namespace

void normalize(const Norm& norm, XType type, const float* x, size_t ldx, float* y, size_t ldy,
               size_t M, size_t n) noexcept {
  for (size_t m = 0; m < M; ++m) {
    if (norm.kind == NormKind::kLayer)
      layer_row(norm, type, x + m * ldx, y + m * ldy, n);
    else
      rms_row(norm, type, x + m * ldx, y + m * ldy, n);
  }
}

}  // namespace moebius
