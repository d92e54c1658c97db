// SPDX-License-Identifier: Apache-2.0
#include "nn/compressor.h"

#include <algorithm>

#include "base/error.h"
#include "base/math_functions.h"
#include "kernels/prepared_rows.h"

namespace moebius {

Compressor::Compressor(const CompressorSpec& spec, std::vector<float> bias, Norm norm, XType type)
    : spec_(spec), bias_(std::move(bias)), norm_(std::move(norm)), type_(type) {
  if (spec.width == 0 || spec.ratio == 0 || kKeyBlock % spec.ratio != 0)
    fail("compressed keys of {} features for {} tokens; expected a divisor of {}", spec.width,
         spec.ratio, kKeyBlock);
  const size_t biases = spec.gated ? spec.ratio * spec.parts() * spec.width : 0;
  if (bias_.size() != biases)
    fail("compressed keys have {} biases; expected {}", bias_.size(), biases);
  if (!norm_.weight.empty() && norm_.weight.size() != spec.width)
    fail("the norm of compressed keys has {} weights; expected {}", norm_.weight.size(),
         spec.width);
  if (!spec.gated && spec.overlaps) fail("compressed keys that overlap have gates");
}

void Compressor::make(const float* const* rows, float* key, float* scratch) const noexcept {
  const size_t n = spec_.width;
  if (spec_.gated)
    weigh(rows, key, scratch);
  else
    average(rows, key);
  round_to(type_, key, n);
  if (!norm_.weight.empty()) normalize(norm_, type_, key, n, key, n, 1, n);
}

void Compressor::average(const float* const* rows, float* key) const noexcept {
  const size_t n = spec_.width, m = spec_.ratio;
  std::copy_n(rows[0], n, key);
  for (size_t s = 1; s < m; ++s)
    for (size_t i = 0; i < n; ++i) key[i] += rows[s][i];
  for (size_t i = 0; i < n; ++i) key[i] /= static_cast<float>(m);
}

void Compressor::weigh(const float* const* rows, float* key, float* scratch) const noexcept {
  const size_t n = spec_.width, m = spec_.ratio, all = spec_.parts() * n, slots = spec_.reach();
  const size_t first = rows[0] == nullptr ? m : 0;
  float *p = scratch, *top = scratch + slots * n, *sum = top + n;
  // Returns the first column of a slot among values or gates.
  const auto part = [&](size_t s) { return spec_.overlaps && s >= m ? n : 0; };
  for (size_t s = first; s < slots; ++s) {
    const float *gate = rows[s] + all + part(s), *bias = bias_.data() + s % m * all + part(s);
    float* to = p + s * n;
    for (size_t i = 0; i < n; ++i) to[i] = gate[i] + bias[i];
    if (s == first) std::copy_n(to, n, top);
    for (size_t i = 0; i < n; ++i) top[i] = to[i] > top[i] ? to[i] : top[i];
  }
  std::fill_n(sum, n, 0.0f);
  for (size_t s = first; s < slots; ++s)
    for (size_t i = 0; i < n; ++i) sum[i] += p[s * n + i] = exp_minus(p[s * n + i], top[i]);
  std::fill_n(key, n, 0.0f);
  for (size_t s = first; s < slots; ++s) {
    const float* value = rows[s] + part(s);
    float* share = p + s * n;
    for (size_t i = 0; i < n; ++i) share[i] /= sum[i];
    round_to(type_, share, n);
    for (size_t i = 0; i < n; ++i) key[i] += share[i] * value[i];
  }
}

}  // namespace moebius
