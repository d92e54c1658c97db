// SPDX-License-Identifier: Apache-2.0
#include "nn/mamba2.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "base/math_functions.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

constexpr RowActivation kMambaSilu{RowFunction::kSilu};

}  // namespace

Mamba2::Mamba2(const Mamba2Spec& spec, Mamba2Weights weights, XType type)
    : Recurrent(spec.shape()), spec_(spec), weights_(std::move(weights)), type_(type) {
  const size_t H = spec.heads, features = spec.features();
  if (H == 0 || spec.groups == 0 || H % spec.groups != 0 || spec.norm_groups == 0 ||
      features % spec.norm_groups != 0 || spec.head_dim > kMostHead)
    fail(
        "Mamba-2 with {} heads of {} in {} groups, {} of them normalized apart; expected groups "
        "that divide the heads, and heads of at most {}",
        H, spec.head_dim, spec.groups, spec.norm_groups, kMostHead);
  if (weights_.a_log.size() != H || weights_.d.size() != H || weights_.dt_bias.size() != H ||
      weights_.norm.size() != features)
    fail("Mamba-2 of {} heads of {}: A_log, D, dt_bias or norm have other sizes", H, spec.head_dim);
  convolution_ = {ShortConvolution(spec.channels(), spec.width, weights_.convolution,
                                   std::move(weights_.convolution_bias)),
                  features, H * spec.head_state()};
  for (const float a : weights_.a_log) rates_.push_back(-exp_f32(a));
  const size_t part = features / spec.norm_groups;
  for (size_t at = 0; at < features; at += part)
    norms_.push_back({NormKind::kRms,
                      weights_.norm_epsilon,
                      {weights_.norm.begin() + static_cast<std::ptrdiff_t>(at),
                       weights_.norm.begin() + static_cast<std::ptrdiff_t>(at + part)},
                      {}});
}

void Mamba2::convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept {
  const RowFunctions& f = row_functions();
  const size_t C = spec_.channels(), H = spec_.heads;
  const float* in = r.in + t * shape().in;
  float *out = r.mixed + t * shape().mixed, *step = out + C, *decay = step + H;
  apply_convolution(r, from, t, out);
  f.activate(kMambaSilu, nullptr, out, out, C);
  f.round(type_, out, C);
  std::memcpy(step, in + spec_.features() + C, H * sizeof(float));
  f.add(step, weights_.dt_bias.data(), H);
  f.activate({RowFunction::kSoftplus}, nullptr, step, step, H);
  for (size_t h = 0; h < H; ++h) {
    step[h] = std::max(step[h], spec_.least_step);
    if (spec_.most_step > 0) step[h] = std::min(step[h], spec_.most_step);
  }
  std::memcpy(decay, step, H * sizeof(float));
  f.multiply(decay, rates_.data(), H);
  f.exp_minus(decay, 0.0f, decay, H);
}

void Mamba2::scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
                  size_t head) const noexcept {
  const size_t P = spec_.head_dim, N = spec_.state, I = spec_.features(), mixed = shape().mixed,
               group = head / (spec_.heads / spec_.groups);
  const float *x = r.mixed + head * P, *B = r.mixed + I + group * N,
              *step = r.mixed + spec_.channels() + head;
  RowScan scan;
  scan.rows = N;
  scan.width = P;
  scan.gain = {step, mixed}, scan.decay = {step + spec_.heads, mixed};
  scan.key = {B, mixed}, scan.value = {x, mixed}, scan.query = {B + spec_.groups * N, mixed};
  scan.y = r.out + head * P;
  scan.y_stride = I;
  for (const RecurrentRun& run : runs) {
    scan_run(run, head * spec_.head_state(), scan);
    for (size_t t = run.begin; t < run.end; ++t)
      row_functions().fma(scan.y + t * I, weights_.d[head], x + t * mixed, P);
  }
}

void Mamba2::finish(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const size_t I = spec_.features(), part = I / norms_.size();
  const float* z = r.in + t * shape().in;
  float* y = r.out + t * I;
  row_functions().activate({RowFunction::kSiluAndMul}, z, y, y, I);
  for (size_t g = 0; g < norms_.size(); ++g)
    normalize(norms_[g], type_, y + g * part, part, y + g * part, part, 1, part);
}

}  // namespace moebius
