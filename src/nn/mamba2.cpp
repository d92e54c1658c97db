// SPDX-License-Identifier: Apache-2.0
#include "nn/mamba2.h"

#include <algorithm>

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
  convolution_ = ShortConvolution(spec.channels(), spec.width, weights_.convolution,
                                  std::move(weights_.convolution_bias));
  const size_t part = features / spec.norm_groups;
  for (size_t at = 0; at < features; at += part)
    norms_.push_back({NormKind::kRms,
                      weights_.norm_epsilon,
                      {weights_.norm.begin() + static_cast<std::ptrdiff_t>(at),
                       weights_.norm.begin() + static_cast<std::ptrdiff_t>(at + part)},
                      {}});
}

void Mamba2::convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept {
  const size_t C = spec_.channels();
  float* out = r.mixed + t * C;
  convolution_.apply(r.in + spec_.features(), shape().in,
                     from == nullptr ? nullptr : from + kept_at(), t, out);
  row_functions().activate(kMambaSilu, nullptr, out, out, C);
  row_functions().round(type_, out, C);
}

// One token of one head.
void Mamba2::advance(const RecurrentRows& r, size_t t, size_t head, float* S) const noexcept {
  const size_t P = spec_.head_dim, N = spec_.state, I = spec_.features(),
               group = head / (spec_.heads / spec_.groups);
  const float *x = r.mixed + t * spec_.channels() + head * P,
              *B = r.mixed + t * spec_.channels() + I + group * N, *C = B + spec_.groups * N;
  float step =
      softplus_f32(r.in[t * shape().in + I + spec_.channels() + head] + weights_.dt_bias[head]);
  step = std::max(step, spec_.least_step);
  if (spec_.most_step > 0) step = std::min(step, spec_.most_step);
  const float decay = exp_f32(-exp_f32(weights_.a_log[head]) * step);
  float input[kMostHead];
  for (size_t p = 0; p < P; ++p) input[p] = x[p] * step;
  float* y = r.out + t * I + head * P;
  advance_state(S, N, P, decay, B, input, C, y);
  row_functions().fma(y, weights_.d[head], x, P);
}

void Mamba2::scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
                  size_t head) const noexcept {
  const size_t size = spec_.head_state();
  for (const RecurrentRun& run : runs) {
    float* S = begin_run(run, head * size, size);
    for (size_t t = run.begin; t < run.end; ++t) advance(r, t, head, S);
  }
}

void Mamba2::finish(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const size_t I = spec_.features(), part = I / norms_.size();
  const float* z = r.in + t * shape().in;
  float* y = r.out + t * I;
  constexpr size_t kTile = 256;
  float gate[kTile];
  for (size_t at = 0; at < I; at += kTile) {
    const size_t n = std::min(kTile, I - at);
    row_functions().activate(kMambaSilu, nullptr, z + at, gate, n);
    for (size_t i = 0; i < n; ++i) y[at + i] = y[at + i] * gate[i];
  }
  for (size_t g = 0; g < norms_.size(); ++g)
    normalize(norms_[g], type_, y + g * part, part, y + g * part, part, 1, part);
}

void Mamba2::keep(const RecurrentRows& r, const RecurrentRun& run,
                  const float* from) const noexcept {
  convolution_.keep(r.in + spec_.features(), shape().in,
                    from == nullptr ? nullptr : from + kept_at(), run.end, run.to + kept_at());
}

}  // namespace moebius
