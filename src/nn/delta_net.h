// SPDX-License-Identifier: Apache-2.0
// Linear attention by the gated delta rule behind a short causal convolution (Qwen3-Next,
// Qwen3.5). A head of values has a state S [key_dim, value_dim]; token by token
//
//   x        = silu(sum over j of w[j] * row[t - (width - 1) + j])       every channel of q, k, v
//   q, k     = x / sqrt(sum x^2 + 1e-6) per head, q / sqrt(key_dim)
//   S        = S * exp(-exp(A) * softplus(a + dt))
//   S        = S + k (v - k S) * sigmoid(b)
//   y        = norm(q S) * silu(z)
//
// Sums over the rows of S run in ascending order, one fma each. The state after token t is a
// function of tokens 0 to t alone: there is one order, in prompts as in decode.
//
// A sequence's state is one array of floats: S of every head, then the last width - 1 rows before
// the convolution.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "nn/norm.h"

namespace moebius {

struct DeltaSpec {
  size_t key_heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  size_t width = 4;  // of the convolution

  size_t keys() const { return key_heads * key_dim; }
  size_t values() const { return value_heads * value_dim; }
  size_t channels() const { return 2 * keys() + values(); }  // [q | k | v]
  size_t head_state() const { return key_dim * value_dim; }
  size_t state_floats() const { return value_heads * head_state() + (width - 1) * channels(); }
};

struct DeltaWeights {
  std::vector<float> convolution;  // [channels, width]
  std::vector<float> a_log, dt;    // [value_heads]
  Norm norm;                       // [value_dim]
};

// Rows of one sequence in one step.
struct DeltaRows {
  const float* rows;       // [T, channels] before the convolution
  const float *z, *b, *a;  // [T, values], [T, value_heads] each
  size_t z_stride, ba_stride;
  float* mixed;  // [T, channels] room for what the convolution gives
  float* out;    // [T, values]
  size_t T;
};

// Tokens [begin, end) of the rows, and where the state before and after them lies. `from` null: a
// sequence begins. A step is some of these in a row, each from the `to` of the one before.
struct DeltaRun {
  size_t begin, end;
  const float* from;
  float* to;
};

class DeltaNet {
 public:
  DeltaNet(const DeltaSpec& spec, DeltaWeights weights, XType type);  // throws Error
  const DeltaSpec& spec() const { return spec_; }

  // In this order; calls of one kind may run on any threads.
  void convolve(const DeltaRows& r, const float* from, size_t t) const noexcept;
  void scan(const DeltaRows& r, std::span<const DeltaRun> runs, size_t head) const noexcept;
  void finish(const DeltaRows& r, size_t t) const noexcept;
  // The rows before the convolution that the next token needs; serial, per run.
  void keep_rows(const DeltaRows& r, const DeltaRun& run, const float* step_from) const noexcept;

 private:
  // Row t - back of the sequence: of this step, or of the state before it; null before its begin.
  const float* row_before(const DeltaRows& r, const float* from, size_t t,
                          size_t back) const noexcept;
  DeltaSpec spec_;
  DeltaWeights weights_;
  XType type_;
  std::vector<float> taps_;  // [width, channels]
};

}  // namespace moebius
