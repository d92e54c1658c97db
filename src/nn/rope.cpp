// SPDX-License-Identifier: Apache-2.0
// Angles are f32 products of position and f32 frequency, as in the published implementations: in
// f64 long contexts would differ.
#include "nn/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "kernels/row_functions.h"

namespace moebius {
namespace {

// YaRN: interpolated frequencies where a feature turns less than beta_slow times in the original
// context, unchanged ones where it turns more than beta_fast times, a ramp between.
std::vector<double> yarn(const RopeSpec& s, std::vector<double> f) {
  const auto d = static_cast<double>(s.dims);
  const auto correction = [&](double turns) {
    return d * std::log(s.original_length / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(s.base));
  };
  double lo = correction(s.beta_fast), hi = correction(s.beta_slow);
  if (s.truncate) lo = std::floor(lo), hi = std::ceil(hi);
  lo = std::max(lo, 0.0), hi = std::min(hi, d - 1);
  if (lo == hi) hi += 0.001;
  for (size_t j = 0; j < f.size(); ++j) {
    const double ramp = std::clamp((static_cast<double>(j) - lo) / (hi - lo), 0.0, 1.0);
    f[j] = f[j] / s.factor * ramp + f[j] * (1 - ramp);
  }
  return f;
}

std::vector<double> llama3(const RopeSpec& s, std::vector<double> f) {
  for (double& v : f) {
    const double wavelength = 2 * std::numbers::pi / v;
    if (wavelength > s.original_length / s.low_freq_factor) {
      v /= s.factor;
    } else if (wavelength > s.original_length / s.high_freq_factor) {
      const double t = (s.original_length / wavelength - s.low_freq_factor) /
                       (s.high_freq_factor - s.low_freq_factor);
      v *= (1 - t) / s.factor + t;
    }
  }
  return f;
}

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& s) {
  double base = s.base;
  const auto d = static_cast<double>(s.dims);
  std::vector<double> f(s.dims / 2);
  for (size_t j = 0; j < f.size(); ++j) f[j] = std::pow(base, -2.0 * static_cast<double>(j) / d);
  switch (s.scaling) {
    case RopeScaling::kLinear:
      for (double& v : f) v /= s.factor;
      break;
    case RopeScaling::kYarn:
      return yarn(s, std::move(f));
    case RopeScaling::kLlama3:
      return llama3(s, std::move(f));
    case RopeScaling::kLongRope: {
      const std::vector<double>& ext =
          s.context > s.original_length ? s.long_factor : s.short_factor;
      for (size_t j = 0; j < f.size(); ++j) f[j] /= ext[j];
      break;
    }
    case RopeScaling::
        kDynamic:  // grows only beyond the original length, which the engine does not exceed
    case RopeScaling::kNone:
      break;
  }
  return f;
}

Rope::Rope(RopeSpec spec)
    : spec_(std::move(spec)),
      frequencies_(rope_frequencies(spec_)),
      factor_(static_cast<float>(spec_.attention_factor)) {
  if (spec_.scaling == RopeScaling::kLongRope && spec_.short_mscale > 0)
    factor_ = static_cast<float>(spec_.context > spec_.original_length ? spec_.long_mscale
                                                                       : spec_.short_mscale);
}

void Rope::reserve(size_t n) {
  const size_t half = frequencies_.size();
  if (half == 0 || cos_.size() >= n * half) return;
  size_t position = cos_.size() / half;
  cos_.resize(n * half);
  sin_.resize(n * half);
  for (; position < n; ++position)
    for (size_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(position) * static_cast<float>(frequencies_[j]);
      cos_[position * half + j] = std::cos(angle) * factor_;
      sin_[position * half + j] = std::sin(angle) * factor_;
    }
}

void Rope::rotate(float* x, size_t position, XType type) const noexcept {
  const size_t half = frequencies_.size();
  row_functions().rotate(x, half, cos_.data() + position * half, sin_.data() + position * half,
                         spec_.interleaved, type);
}

}  // namespace moebius
