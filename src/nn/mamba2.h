// SPDX-License-Identifier: Apache-2.0
// Mamba-2: a selective state space after a short causal convolution. A head of P features has a
// state S [N, P]; B and C are shared by the heads of a group; token by token
//
//   x, B, C  = silu(convolution of [x | B | C] + bias)
//   d        = softplus(dt + bias), held between two limits
//   S        = S * exp(-exp(A) * d) + B (x d)
//   y        = C S + D x
//   out      = norm over a group of features of y * silu(z)
//
// Sums over the rows of S run in ascending order, one fma each. A row is [z | x | B | C | dt]. A
// sequence's state is S of every head, then the convolution's. Intermediate rows are [x | B | C | d
// | decay].
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "nn/norm.h"
#include "nn/recurrent.h"

namespace moebius {

struct Mamba2Spec {
  size_t heads = 0, head_dim = 0, groups = 1, state = 0;
  size_t width = 4;                     // taps of the convolution
  size_t norm_groups = 1;               // the features are normalized in so many equal parts
  float least_step = 0, most_step = 0;  // limits of d; most_step 0: no limits

  size_t features() const { return heads * head_dim; }
  // Columns that are convolved: [x | B | C].
  size_t channels() const { return features() + 2 * groups * state; }
  size_t head_state() const { return state * head_dim; }
  RecurrentShape shape() const {
    return {features() + channels() + heads, channels() + 2 * heads, features(), heads,
            heads * head_state() + ShortConvolution::state_floats(channels(), width)};
  }
};

struct Mamba2Weights {
  std::vector<float> convolution, convolution_bias;  // [channels, width], [channels] or empty
  std::vector<float> a_log, d, dt_bias;              // [heads] A, D and the bias of dt
  std::vector<float> norm;                           // [features] weights of the norm
  float norm_epsilon = 1e-6f;
};

class Mamba2 : public Recurrent {
 public:
  static constexpr size_t kMostHead = 512;  // most features of a head

  // Throws Error if the sizes of weights do not fit the spec.
  Mamba2(const Mamba2Spec& spec, Mamba2Weights weights, XType type);

  void convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void scan(const RecurrentRows& r, std::span<const RecurrentRun> runs,
            size_t head) const noexcept override;
  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;

 private:
  Mamba2Spec spec_;
  Mamba2Weights weights_;
  XType type_;
  std::vector<Norm> norms_;   // one per group of features
  std::vector<float> rates_;  // [heads] -exp(A)
};

}  // namespace moebius
