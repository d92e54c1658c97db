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
  if (bias_.size() != spec.ratio * spec.parts() * spec.width)
    fail("compressed keys have {} biases; expected {}", bias_.size(),
         spec.ratio * spec.parts() * spec.width);
}

void Compressor::make(const float* const* rows, float* key, float* scratch) const noexcept {
  const size_t n = spec_.width, m = spec_.ratio, all = spec_.parts() * n, slots = spec_.reach();
  const size_t first = rows[0] == nullptr ? m : 0;
  float *p = scratch, *top = scratch + slots * n, *sum = top + n;
  // Columns of a slot among values or gates.
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
  round_to(type_, key, n);
  normalize(norm_, type_, key, n, key, n, 1, n);
}

}  // namespace moebius
