// SPDX-License-Identifier: Apache-2.0
#include "nn/delta_net.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/math_functions.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr RowActivation kSilu{RowFunction::kSilu};

// Scales each head of x to length 1 / divisor: x / sqrt(sum of squares + 1e-6) / divisor, by the
// norm whose mean of squares is that sum / n.
void to_length(float* x, size_t heads, size_t n, float divisor) {
  const auto count = static_cast<float>(n);
  const RowNorm norm{NormKind::kRmsPlain, XType::kF32, 1e-6f / count, nullptr, nullptr};
  for (size_t h = 0; h < heads; ++h) row_functions().normalize(norm, x + h * n, x + h * n, n);
  row_functions().scale(x, 1.0f / (std::sqrt(count) * divisor), heads * n);
}

}  // namespace

DeltaNet::DeltaNet(const DeltaSpec& spec, DeltaWeights weights, XType type)
    : Recurrent(spec.shape()), spec_(spec), weights_(std::move(weights)), type_(type) {
  const size_t C = spec.channels(), H = spec.value_heads;
  if (H == 0 || spec.key_heads == 0 || H % spec.key_heads != 0)
    fail("linear attention with {} heads of values and {} of keys; expected a multiple", H,
         spec.key_heads);
  if (weights_.a_log.size() != H || weights_.dt.size() != spec.decays() ||
      weights_.norm.weight.size() != spec.value_dim)
    fail("linear attention of {} channels: its decays or norm have other sizes", C);
  convolution_ = {ShortConvolution(C, spec.width, weights_.convolution, {}), 0,
                  H * spec.head_state()};
  const size_t each = spec.decays() / H;
  for (const float a : weights_.a_log)
    rates_.insert(rates_.end(), each, spec.decay_bound != 0 ? exp_f32(a) : -exp_f32(a));
}

void DeltaNet::arrange(const float* x, float* in) const noexcept {
  const size_t K = spec_.key_dim, n = spec_.value_heads / spec_.key_heads, nv = n * spec_.value_dim;
  const auto take = [&](size_t at, size_t count) {
    std::memcpy(in + at, x, count * sizeof(float));
    x += count;
  };
  for (size_t g = 0; g < spec_.key_heads; ++g) {
    take(g * K, K);
    take(spec_.keys() + g * K, K);
    take(2 * spec_.keys() + g * nv, nv);
    take(spec_.channels() + g * nv, nv);
  }
  const size_t b = spec_.channels() + spec_.values();
  for (size_t g = 0; g < spec_.key_heads; ++g) {
    take(b + g * n, n);
    take(b + spec_.value_heads + g * n, n);
  }
}

void DeltaNet::convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept {
  const RowFunctions& f = row_functions();
  const size_t C = spec_.channels(), H = spec_.value_heads, D = spec_.decays(), K = spec_.key_dim;
  const float* b = r.in + t * shape().in + C + spec_.values();
  float *out = r.mixed + t * shape().mixed, *gain = out + C, *decay = gain + H;
  apply_convolution(r, from, t, out);
  f.activate(kSilu, nullptr, out, out, C);
  f.round(type_, out, C);
  to_length(out, spec_.key_heads, K, std::sqrt(static_cast<float>(K)));
  to_length(out + spec_.keys(), spec_.key_heads, K, 1.0f);
  f.activate({RowFunction::kSigmoid}, nullptr, b, gain, H);
  std::memcpy(decay, b + H, D * sizeof(float));
  f.add(decay, weights_.dt.data(), D);
  if (spec_.decay_bound != 0) {
    f.multiply(decay, rates_.data(), D);
    f.activate({RowFunction::kSigmoid}, nullptr, decay, decay, D);
    f.scale(decay, spec_.decay_bound, D);
  } else {
    f.activate({RowFunction::kSoftplus}, nullptr, decay, decay, D);
    f.multiply(decay, rates_.data(), D);
  }
  f.exp_minus(decay, 0.0f, decay, D);
}

void DeltaNet::scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
                    size_t head) const noexcept {
  const size_t K = spec_.key_dim, V = spec_.value_dim, mixed = shape().mixed,
               key_head = head / (spec_.value_heads / spec_.key_heads);
  const float* gain = r.mixed + spec_.channels() + head;
  RowScan scan;
  scan.rows = K;
  scan.width = V;
  scan.delta = true;
  scan.decay_per_row = spec_.decay_per_key;
  scan.gain = {gain, mixed};
  scan.decay = {
      r.mixed + spec_.channels() + spec_.value_heads + head * (spec_.decay_per_key ? K : 1), mixed};
  scan.query = {r.mixed + key_head * K, mixed};
  scan.key = {r.mixed + spec_.keys() + key_head * K, mixed};
  scan.value = {r.mixed + 2 * spec_.keys() + head * V, mixed};
  scan.y = r.out + head * V;
  scan.y_stride = spec_.values();
  for (const RecurrentRun& run : runs) {
    scan_run(run, head * K * V, scan);
    for (size_t t = run.begin; t < run.end; ++t)
      row_functions().round(type_, scan.y + t * scan.y_stride, V);
  }
}

void DeltaNet::finish(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const RowFunctions& f = row_functions();
  const size_t V = spec_.value_dim;
  const float* z = r.in + t * shape().in + spec_.channels();
  // Outputs overwrite inputs that are no longer needed.
  float *y = r.out + t * spec_.values(), *gate = r.mixed + t * shape().mixed;
  normalize(weights_.norm, type_, y, V, y, V, spec_.value_heads, V);
  f.activate(RowActivation{spec_.gate}, nullptr, z, gate, spec_.values());
  f.multiply(y, gate, spec_.values());
  f.round(type_, y, spec_.values());
}

}  // namespace moebius
