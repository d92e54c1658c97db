// SPDX-License-Identifier: Apache-2.0
#include "nn/streams.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "base/math_functions.h"

namespace moebius {
namespace {

constexpr size_t kStreamLanes = 16;

float product(const float* a, const float* b, size_t n) noexcept {
  std::array<float, kStreamLanes> sums{};
  size_t i = 0;
  for (; i + kStreamLanes <= n; i += kStreamLanes)
    for (size_t j = 0; j < kStreamLanes; ++j) sums[j] += a[i + j] * b[i + j];
  for (size_t j = 0; i < n; ++i, ++j) sums[j] += a[i] * b[i];
  for (size_t half = kStreamLanes / 2; half > 0; half /= 2)
    for (size_t j = 0; j < half; ++j) sums[j] += sums[j + half];
  return sums[0];
}

void softmax_rows(float* c, size_t n, float epsilon) noexcept {
  for (size_t i = 0; i < n; ++i) {
    float* row = c + i * n;
    const float top = *std::max_element(row, row + n);
    float sum = 0;
    for (size_t j = 0; j < n; ++j) sum += row[j] = exp_minus(row[j], top);
    for (size_t j = 0; j < n; ++j) row[j] = row[j] / sum + epsilon;
  }
}

// Divides rows (step 1) or columns (step n) by their sum + epsilon.
void divide_by_sums(float* c, size_t n, size_t along, size_t across, float epsilon) noexcept {
  for (size_t i = 0; i < n; ++i) {
    float sum = 0;
    for (size_t j = 0; j < n; ++j) sum += c[i * across + j * along];
    for (size_t j = 0; j < n; ++j) c[i * across + j * along] /= sum + epsilon;
  }
}

}  // namespace

void stream_gates(const StreamGates& g, const float* u, size_t width, float* gates) noexcept {
  const size_t n = g.streams, all = n * width, outputs = g.base.size();
  const float r = 1.0f / std::sqrt(product(u, u, all) / static_cast<float>(all) + g.norm_epsilon);
  for (size_t i = 0; i < outputs; ++i) {
    const size_t kind = std::min<size_t>(i / n, 2);
    const float m = product(g.weight.data() + i * all, u, all) * r * g.scale[kind] + g.base[i];
    gates[i] = kind == 0   ? sigmoid_f32(m) + g.epsilon
               : kind == 1 ? g.magnitude * sigmoid_f32(m) + g.out_epsilon
                           : m;
  }
  if (g.rounds == 0) return;
  float* mix = gates + 2 * n;
  softmax_rows(mix, n, g.epsilon);
  divide_by_sums(mix, n, n, 1, g.epsilon);
  for (size_t i = 1; i < g.rounds; ++i) {
    divide_by_sums(mix, n, 1, n, g.epsilon);
    divide_by_sums(mix, n, n, 1, g.epsilon);
  }
}

void streams_in(const StreamGates& g, const float* gates, const float* u, float* y,
                size_t width) noexcept {
  if (g.weight.empty()) {
    for (size_t k = 0; k < width; ++k) y[k] = u[k];
    for (size_t i = 1; i < g.streams; ++i)
      for (size_t k = 0; k < width; ++k) y[k] += u[i * width + k];
    for (size_t k = 0; k < width; ++k) y[k] /= static_cast<float>(g.streams);
    return;
  }
  for (size_t k = 0; k < width; ++k) y[k] = gates[0] * u[k];
  for (size_t i = 1; i < g.streams; ++i)
    for (size_t k = 0; k < width; ++k) y[k] += gates[i] * u[i * width + k];
}

void streams_keyed(size_t n, const float* keys, const float* value, const float* queries, float* y,
                   size_t width) noexcept {
  for (size_t i = 0; i < n; ++i) {
    const float g = product(keys + i * width, queries + i * width, width) /
                    std::sqrt(static_cast<float>(width)),
                root = g == 0 ? 0 : std::copysign(std::sqrt(std::max(std::fabs(g), 1e-6f)), g),
                share = sigmoid_f32(root);
    for (size_t k = 0; k < width; ++k) y[i * width + k] = share * value[k];
  }
}

void streams_out(const StreamGates& g, const float* gates, const float* y, float* u,
                 size_t width) noexcept {
  const size_t n = g.streams;
  const float *out = gates + n, *mix = gates + 2 * n;
  if (g.rounds == 0) {
    for (size_t j = 0; j < n; ++j)
      for (size_t k = 0; k < width; ++k) u[j * width + k] += out[j] * y[k];
    return;
  }
  constexpr size_t kMost = 16;
  std::array<float, kMost> before;
  for (size_t k = 0; k < width; ++k) {
    for (size_t i = 0; i < n; ++i) before[i] = u[i * width + k];
    for (size_t j = 0; j < n; ++j) {
      float sum = 0;
      for (size_t i = 0; i < n; ++i) sum += mix[i * n + j] * before[i];
      u[j * width + k] = out[j] * y[k] + sum;
    }
  }
}

}  // namespace moebius
