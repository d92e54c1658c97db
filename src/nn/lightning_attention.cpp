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
  const size_t D = spec_.head_dim, mixed = shape().mixed;
  const float one = 1.0f, *q = r.mixed + 3 * head * D;
  RowScan scan;
  scan.rows = scan.width = D;
  scan.decay = {&decays_[head], 0}, scan.gain = {&one, 0};
  scan.query = {q, mixed}, scan.key = {q + D, mixed}, scan.value = {q + 2 * D, mixed};
  scan.y = r.out + head * D;
  scan.y_stride = shape().out;
  for (const RecurrentRun& run : runs) {
    scan_run(run, head * D * D, scan);
    for (size_t t = run.begin; t < run.end; ++t)
      row_functions().round(type_, scan.y + t * scan.y_stride, D);
  }
}

void LightningAttention::finish(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const size_t n = spec_.features();
  const float* gate = r.in + t * shape().in + 3 * n;
  // Outputs overwrite inputs that are no longer needed.
  float *y = r.out + t * n, *g = r.mixed + t * shape().mixed;
  constexpr RowActivation kAct{RowFunction::kSigmoid};
  normalize(norm_, type_, y, n, y, n, 1, n);
  row_functions().activate(kAct, nullptr, gate, g, n);
  row_functions().round(type_, g, n);
  row_functions().multiply(y, g, n);
  row_functions().round(type_, y, n);
}

}  // namespace moebius
