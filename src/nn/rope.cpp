// SPDX-License-Identifier: Apache-2.0
// Computes rotary embeddings. Angles are f32 products of position and f32 frequency, as in the
// published implementations: f64 would differ in long contexts.
#include "nn/rope.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <numbers>

#include "kernels/row_functions.h"

namespace moebius {
namespace {

// Applies YaRN to frequencies: interpolates those of features that turn less than beta_slow times
// in the original context, keeps those that turn more than beta_fast times, and blends linearly
// between.
std::vector<double> yarn(const RopeSpec& s, std::vector<double> f) {
  const auto d = static_cast<double>(s.dims);
  const auto correction = [&](double turns) {
    return d * std::log(s.original_length / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(s.base));
  };
  double lo = correction(s.beta_fast), hi = correction(s.beta_slow);
  if (s.truncate) {
    lo = std::floor(lo);
    hi = std::ceil(hi);
  }
  lo = std::max(lo, 0.0);
  hi = std::min(hi, d - 1);
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

std::vector<double> plain_frequencies(const RopeSpec& s, size_t length) {
  double base = s.base;
  const auto d = static_cast<double>(s.dims);
  const auto long_as = static_cast<double>(length);
  if (s.scaling == RopeScaling::kDynamic && long_as > s.original_length && s.dims > 2)
    base *= std::pow(s.factor * long_as / s.original_length - (s.factor - 1), d / (d - 2));
  std::vector<double> f(s.dims / 2);
  for (size_t j = 0; j + s.still < f.size(); ++j)
    f[j] = std::pow(base, -2.0 * static_cast<double>(j) / d);
  switch (s.scaling) {
    case RopeScaling::kLinear:
      for (double& v : f) v /= s.factor;
      break;
    case RopeScaling::kYarn:
      return yarn(s, std::move(f));
    case RopeScaling::kLlama3:
      return llama3(s, std::move(f));
    case RopeScaling::kLongRope: {
      const std::vector<double>& ext = long_as > s.original_length ? s.long_factor : s.short_factor;
      for (size_t j = 0; j < f.size(); ++j) f[j] /= ext[j];
      break;
    }
    case RopeScaling::kDynamic:
    case RopeScaling::kNone:
      break;
  }
  return f;
}

std::atomic<uint64_t> next_rope_id{1};

}  // namespace

std::vector<double> rope_frequencies(const RopeSpec& s, size_t length) {
  std::vector<double> f = plain_frequencies(s, length);
  for (size_t j = 0; j < s.factors.size(); ++j) f[j] *= s.factors[j];
  return f;
}

Rope::Rope(RopeSpec spec) : spec_(std::move(spec)), id_(next_rope_id++) {
  table_ = make_table(0);
  if (spec_.scaling == RopeScaling::kLongRope)
    long_ = make_table(static_cast<size_t>(spec_.original_length) + 1);
}

Rope::Table Rope::make_table(size_t length) const {
  Table t;
  t.frequencies = rope_frequencies(spec_, length);
  t.factor = static_cast<float>(spec_.attention_factor);
  if (spec_.scaling == RopeScaling::kLongRope && spec_.short_mscale > 0)
    t.factor = static_cast<float>(beyond(length) ? spec_.long_mscale : spec_.short_mscale);
  return t;
}

bool Rope::beyond(size_t length) const {
  return static_cast<double>(length) > spec_.original_length;
}

void Rope::reserve(size_t n) {
  fill(table_, n);
  if (spec_.scaling == RopeScaling::kLongRope) fill(long_, n);
}

void Rope::fill(Table& t, size_t n) const {
  const size_t half = t.frequencies.size();
  if (half == 0 || t.cos.size() >= n * half) return;
  size_t position = t.cos.size() / half;
  t.sin.resize(n * half);
  t.cos.resize(n * half);  // filled last: its size tells how much exists
  for (; position < n; ++position)
    for (size_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(position) * static_cast<float>(t.frequencies[j]);
      t.cos[position * half + j] = std::cos(angle) * t.factor;
      t.sin[position * half + j] = std::sin(angle) * t.factor;
    }
}

Rope::Turn Rope::turn(size_t position, size_t length) const {
  const Table& t = spec_.scaling == RopeScaling::kLongRope && beyond(length) ? long_ : table_;
  const size_t half = t.frequencies.size();
  const float *cos = t.cos.data() + position * half, *sin = t.sin.data() + position * half;
  if (spec_.scaling == RopeScaling::kDynamic && beyond(length)) {
    // Every length has its own frequencies: the thread keeps one row of them, of the last length
    // seen.
    thread_local size_t made_for = 0;
    thread_local uint64_t made_by = 0;
    thread_local std::vector<double> frequencies;
    thread_local std::vector<float> row;
    if (made_for != length || made_by != id_) {
      frequencies = rope_frequencies(spec_, length);
      made_for = length;
      made_by = id_;
    }
    row.resize(2 * half);
    for (size_t j = 0; j < half; ++j) {
      const float angle = static_cast<float>(position) * static_cast<float>(frequencies[j]);
      row[j] = std::cos(angle) * t.factor;
      row[half + j] = std::sin(angle) * t.factor;
    }
    cos = row.data();
    sin = row.data() + half;
  }
  return {cos, sin};
}

void Rope::rotate(float* x, size_t position, size_t length, XType type) const {
  const Turn t = turn(position, length);
  row_functions().rotate(x, spec_.dims / 2, t.cos, t.sin, spec_.interleaved, type);
}

// Rotates back by rotating the conjugate: (a, -b) turned forth is (a', -b'), where (a', b') is (a,
// b) turned back.
void Rope::rotate_back(float* x, size_t position, size_t length, XType type) const {
  const size_t half = spec_.dims / 2;
  const auto mirror = [&] {
    for (size_t j = 0; j < half; ++j) {
      float& b = x[spec_.interleaved ? 2 * j + 1 : half + j];
      b = -b;
    }
  };
  mirror();
  rotate(x, position, length, type);
  mirror();
}

}  // namespace moebius
