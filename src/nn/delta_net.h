// SPDX-License-Identifier: Apache-2.0
// Linear attention by the gated delta rule after a short causal convolution (Qwen3-Next, Qwen3.5,
// Kimi-Linear). A head of values has a state S [key_dim, value_dim]; token by token
//
//   x        = silu(sum over j of w[j] * row[t - (width - 1) + j])       every channel of q, k, v
//   q, k     = x / sqrt(sum x^2 + 1e-6) per head, q / sqrt(key_dim)
//   S        = S * exp(-exp(A) * softplus(a + dt)), or exp(bound * sigmoid(exp(A) * (a + dt)))
//   S        = S + k (v - k S) * sigmoid(b)
//   y        = norm(q S) * silu(z), or sigmoid(z)
//
// Sums over the rows of S run in ascending order, one fma each.
//
// A row is [q | k | v | z | b | a]. A sequence's state is S of every head, then the convolution's.
// Intermediate rows are [q | k | v | sigmoid(b) | decay].
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "nn/norm.h"
#include "nn/recurrent.h"

namespace moebius {

struct DeltaSpec {
  size_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  size_t width = 4;  // taps of the convolution
  // true: a, dt and the decay are [key_dim] per head, one for each row of S
  bool decay_per_key = false;
  // bound in the second form of the decay, if negative; 0: the first form
  float decay_bound = 0;
  RowFunction gate = RowFunction::kSilu;
  // true: projections give [q k v z] per key head, then [b a] per key head; false: rows as
  // described above.
  bool by_key_head = false;

  size_t keys() const { return key_heads * key_dim; }
  size_t values() const { return value_heads * value_dim; }
  // Columns that are convolved: [q | k | v].
  size_t channels() const { return 2 * keys() + values(); }
  size_t decays() const { return value_heads * (decay_per_key ? key_dim : 1); }
  size_t head_state() const { return key_dim * value_dim; }
  RecurrentShape shape() const {
    return {channels() + values() + value_heads + decays(), channels() + value_heads + decays(),
            values(), value_heads,
            value_heads * head_state() + ShortConvolution::state_floats(channels(), width)};
  }
};

struct DeltaWeights {
  std::vector<float> convolution;  // [channels, width] taps
  std::vector<float> a_log, dt;    // [value_heads] or [decays]: A and dt of the decay
  Norm norm;                       // norm of the result, [value_dim]
};

class DeltaNet : public Recurrent {
 public:
  // Throws Error for sizes that do not fit.
  DeltaNet(const DeltaSpec& spec, DeltaWeights weights, XType type);

  bool arranges() const override { return spec_.by_key_head; }
  void arrange(const float* projected, float* in) const noexcept override;
  void convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
            size_t head) const noexcept override;
  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;

 private:
  DeltaSpec spec_;
  DeltaWeights weights_;
  XType type_;
  std::vector<float> rates_;  // -exp(A) for each decay, or exp(A) in the bounded form
};

}  // namespace moebius
