// SPDX-License-Identifier: Apache-2.0
#include "nn/lightning_attention.h"

#include "base/error.h"
#include "base/math_functions.h"
#include "kernels/row_functions.h"

namespace moebius {

LightningAttention::LightningAttention(const LightningSpec& spec, const std::vector<float>& rates,
                                       Norm norm, XType type)
    : Recurrent(spec.shape()), spec_(spec), norm_(std::move(norm)), type_(type) {
  if (rates.size() != spec.heads || norm_.weight.size() != spec.features())
    fail("lightning attention of {} heads of {}: {} rates and a norm of {}", spec.heads,
         spec.head_dim, rates.size(), norm_.weight.size());
  for (const float rate : rates) decays_.push_back(exp_f32(-rate));
}

void LightningAttention::convolve(const RecurrentRows& r, const float*, size_t t) const noexcept {
  constexpr RowActivation kAct{RowFunction::kSilu};
  float* y = r.mixed + t * shape().mixed;
  row_functions().activate(kAct, nullptr, r.in + t * shape().in, y, shape().mixed);
  row_functions().round(type_, y, shape().mixed);
}

void LightningAttention::scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
                              size_t head) const noexcept {
  const size_t D = spec_.head_dim;
  for (const RecurrentRun& run : runs) {
    float* S = begin_run(run, head * D * D, D * D);
    for (size_t t = run.begin; t < run.end; ++t) {
      const float* q = r.mixed + t * shape().mixed + 3 * head * D;
      float* y = r.out + t * shape().out + head * D;
      advance_state(S, D, D, decays_[head], q + D, q + 2 * D, q, y);
      row_functions().round(type_, y, D);
    }
  }
}

void LightningAttention::finish(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const size_t n = spec_.features();
  const float* gate = r.in + t * shape().in + 3 * n;
  float *y = r.out + t * n, *g = r.mixed + t * shape().mixed;  // no longer needed
  constexpr RowActivation kAct{RowFunction::kSigmoid};
  normalize(norm_, type_, y, n, y, n, 1, n);
  row_functions().activate(kAct, nullptr, gate, g, n);
  row_functions().round(type_, g, n);
  for (size_t i = 0; i < n; ++i) y[i] = y[i] * g[i];
  row_functions().round(type_, y, n);
}

}  // namespace moebius
