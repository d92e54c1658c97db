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
    : Recurrent(spec.shape()), spec_(spec), weights_(std::move(weights)), type_(type) {
  const size_t C = spec.channels(), H = spec.value_heads;
  if (H == 0 || spec.key_heads == 0 || H % spec.key_heads != 0)
    fail("linear attention with {} heads of values and {} of keys; expected a multiple", H,
         spec.key_heads);
  if (weights_.a_log.size() != H || weights_.dt.size() != spec.decays() ||
      weights_.norm.weight.size() != spec.value_dim)
    fail("linear attention of {} channels: its decays or norm have other sizes", C);
  convolution_ = ShortConvolution(C, spec.width, weights_.convolution, {});
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
  float* out = r.mixed + t * spec_.channels();
  convolution_.apply(r.in, shape().in, from == nullptr ? nullptr : from + kept_at(), t, out);
  row_functions().activate(kSilu, nullptr, out, out, spec_.channels());
  row_functions().round(type_, out, spec_.channels());
}

// What each row of S is multiplied by.
void DeltaNet::decay_of(const float* a, size_t head, float* decay) const noexcept {
  const float rate = -exp_f32(weights_.a_log[head]);
  const auto of = [&](size_t i) { return exp_f32(rate * softplus_f32(a[i] + weights_.dt[i])); };
  if (!spec_.decay_per_key) {
    std::fill_n(decay, spec_.key_dim, of(head));
    return;
  }
  for (size_t i = 0; i < spec_.key_dim; ++i) decay[i] = of(head * spec_.key_dim + i);
}

void DeltaNet::scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
                    size_t head) const noexcept {
  constexpr size_t kMost = 512;  // of a head; checked when the model is loaded
  const RowFunctions& f = row_functions();
  const size_t K = spec_.key_dim, V = spec_.value_dim, C = spec_.channels(),
               key_head = head / (spec_.value_heads / spec_.key_heads);
  const float root = std::sqrt(static_cast<float>(K));
  float q[kMost], k[kMost], decay[kMost], memory[kMost];
  for (const RecurrentRun& run : runs) {
    float* S = begin_run(run, head * K * V, K * V);
    for (size_t t = run.begin; t < run.end; ++t) {
      const float* row = r.mixed + t * C;
      unit_length(row + key_head * K, K, root, q);
      unit_length(row + spec_.keys() + key_head * K, K, 1.0f, k);
      const float* v = row + 2 * spec_.keys() + head * V;
      const float* b = r.in + t * shape().in + C + spec_.values();
      decay_of(b + spec_.value_heads, head, decay);
      const float beta = sigmoid_f32(b[head]);
      std::fill_n(memory, V, 0.0f);
      for (size_t i = 0; i < K; ++i) {
        f.scale(S + i * V, decay[i], V);
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

void DeltaNet::finish(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const size_t V = spec_.value_dim;
  const float* z = r.in + t * shape().in + spec_.channels();
  float gate[512];
  for (size_t h = 0; h < spec_.value_heads; ++h) {
    float* y = r.out + t * spec_.values() + h * V;
    normalize(weights_.norm, type_, y, V, y, V, 1, V);
    row_functions().activate(RowActivation{spec_.gate}, nullptr, z + h * V, gate, V);
    for (size_t c = 0; c < V; ++c) y[c] = y[c] * gate[c];
    row_functions().round(type_, y, V);
  }
}

void DeltaNet::keep(const RecurrentRows& r, const RecurrentRun& run,
                    const float* from) const noexcept {
  convolution_.keep(r.in, shape().in, from == nullptr ? nullptr : from + kept_at(), run.end,
                    run.to + kept_at());
}

}  // namespace moebius
