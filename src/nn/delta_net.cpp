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

// x / sqrt(sum of squares + 1e-6), then / divisor. Lanes as in norms are not needed: one order, the
// plain one, on every instruction set.
void unit_length(const float* x, size_t n, float divisor, float* y) {
  float sum = 0.0f;
  for (size_t i = 0; i < n; ++i) sum = sum + x[i] * x[i];
  const float length = std::sqrt(sum + 1e-6f);
  row_functions().divide(x, length, y, n);
  if (divisor != 1.0f) row_functions().divide(y, divisor, y, n);
}

}  // namespace

DeltaNet::DeltaNet(const DeltaSpec& spec, DeltaWeights weights, XType type)
    : spec_(spec), weights_(std::move(weights)), type_(type) {
  const size_t C = spec.channels(), H = spec.value_heads;
  if (H == 0 || spec.key_heads == 0 || H % spec.key_heads != 0)
    fail("linear attention with {} heads of values and {} of keys; expected a multiple", H,
         spec.key_heads);
  if (weights_.convolution.size() != C * spec.width || weights_.a_log.size() != H ||
      weights_.dt.size() != H || weights_.norm.weight.size() != spec.value_dim)
    fail("linear attention of {} channels: its convolution, decays or norm have other sizes", C);
  taps_.resize(C * spec.width);
  for (size_t c = 0; c < C; ++c)
    for (size_t j = 0; j < spec.width; ++j)
      taps_[j * C + c] = weights_.convolution[c * spec.width + j];
}

const float* DeltaNet::row_before(const DeltaRows& r, const float* from, size_t t,
                                  size_t back) const noexcept {
  const size_t C = spec_.channels();
  if (back <= t) return r.rows + (t - back) * C;
  if (from == nullptr) return nullptr;
  const float* kept = from + spec_.value_heads * spec_.head_state();  // oldest first
  return kept + (spec_.width - 1 - (back - t)) * C;
}

void DeltaNet::convolve(const DeltaRows& r, const float* from, size_t t) const noexcept {
  const size_t C = spec_.channels();
  float* out = r.mixed + t * C;
  std::fill_n(out, C, 0.0f);
  for (size_t j = 0; j < spec_.width; ++j) {
    const float* x = row_before(r, from, t, spec_.width - 1 - j);
    const float* w = taps_.data() + j * C;
    if (x == nullptr) continue;  // before the sequence: zeros
    for (size_t c = 0; c < C; ++c) out[c] = out[c] + w[c] * x[c];
  }
  row_functions().activate(kSilu, nullptr, out, out, C);
  row_functions().round(type_, out, C);
}

void DeltaNet::scan(const DeltaRows& r, std::span<const DeltaRun> runs,
                    size_t head) const noexcept {
  constexpr size_t kMost = 512;  // of a head; checked when the model is loaded
  const RowFunctions& f = row_functions();
  const size_t K = spec_.key_dim, V = spec_.value_dim, C = spec_.channels(),
               key_head = head / (spec_.value_heads / spec_.key_heads);
  const float rate = -exp_f32(weights_.a_log[head]), root = std::sqrt(static_cast<float>(K));
  float q[kMost], k[kMost], memory[kMost];
  for (const DeltaRun& run : runs) {
    float* S = run.to + head * K * V;
    if (run.from == nullptr)
      std::fill_n(S, K * V, 0.0f);
    else if (run.from != run.to)
      std::memcpy(S, run.from + head * K * V, K * V * sizeof(float));
    for (size_t t = run.begin; t < run.end; ++t) {
      const float* row = r.mixed + t * C;
      unit_length(row + key_head * K, K, root, q);
      unit_length(row + spec_.keys() + key_head * K, K, 1.0f, k);
      const float* v = row + 2 * spec_.keys() + head * V;
      const float decay =
          exp_f32(rate * softplus_f32(r.a[t * r.ba_stride + head] + weights_.dt[head]));
      const float beta = sigmoid_f32(r.b[t * r.ba_stride + head]);
      std::fill_n(memory, V, 0.0f);
      for (size_t i = 0; i < K; ++i) {
        f.scale(S + i * V, decay, V);
        f.fma(memory, k[i], S + i * V, V);
      }
      for (size_t c = 0; c < V; ++c) memory[c] = (v[c] - memory[c]) * beta;
      float* out = r.out + t * spec_.values() + head * V;
      std::fill_n(out, V, 0.0f);
      for (size_t i = 0; i < K; ++i) {
        f.fma(S + i * V, k[i], memory, V);
        f.fma(out, q[i], S + i * V, V);
      }
      f.round(type_, out, V);
    }
  }
}

void DeltaNet::finish(const DeltaRows& r, size_t t) const noexcept {
  const size_t V = spec_.value_dim;
  float gate[512];
  for (size_t h = 0; h < spec_.value_heads; ++h) {
    float* y = r.out + t * spec_.values() + h * V;
    normalize(weights_.norm, type_, y, V, y, V, 1, V);
    row_functions().activate(kSilu, nullptr, r.z + t * r.z_stride + h * V, gate, V);
    for (size_t c = 0; c < V; ++c) y[c] = y[c] * gate[c];
    row_functions().round(type_, y, V);
  }
}

void DeltaNet::keep_rows(const DeltaRows& r, const DeltaRun& run,
                         const float* step_from) const noexcept {
  const size_t C = spec_.channels();
  float* to = run.to + spec_.value_heads * spec_.head_state();
  for (size_t i = 0; i + 1 < spec_.width; ++i) {
    // Row i of those kept is the one `width - 1 - i` before token run.end.
    const float* x = row_before(r, step_from, run.end - 1, spec_.width - 2 - i);
    if (x == nullptr)
      std::fill_n(to + i * C, C, 0.0f);
    else
      std::memcpy(to + i * C, x, C * sizeof(float));
  }
}

}  // namespace moebius
