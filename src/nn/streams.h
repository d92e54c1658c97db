// SPDX-License-Identifier: Apache-2.0
// Hyper-connections: a row is n streams of H features. Before a branch their weighted sum is its
// input; after it the branch's result is added to each stream. With u = [stream 0 | ... | stream n
// - 1], r = 1 /
// sqrt(mean(u^2) + norm_epsilon) and m = (W u) r:
//
//   in_i    = sigmoid(m_i scale_0 + base_i) + epsilon
//   out_j   = magnitude sigmoid(m_(n+j) scale_1 + base_(n+j)) + out_epsilon
//   mix     = [n, n], rows of softmax(m_(2n..) scale_2 + base_(2n..)) + epsilon, then columns divided by
//             their sum + epsilon; `rounds` - 1 times rows, then columns again  (mHC; rounds 0: none)
//
//   x       = sum over i of in_i stream_i                                      what the branch reads
//   stream_j = out_j y + sum over i of mix_ij stream_i, or out_j y + stream_j   behind it
//
// Without W, x is the mean of the streams.
//
// A value v that all streams have in common, and a key k_i for each, join them as
//
//   y_i = sigmoid(root(k_i q_i / sqrt(H))) v,   root(g) = sign(g) sqrt(max(|g|, 1e-6)),  root(0) = 0
//
// Sums over streams run in ascending order. Those of W u and u^2 have 16 lanes, added in pairs.
#pragma once
#include <cstddef>
#include <vector>

namespace moebius {

struct StreamGates {
  size_t streams = 0;
  float norm_epsilon = 1e-6f, epsilon = 1e-6f, out_epsilon = 0, magnitude = 2;
  size_t rounds = 0;
  std::vector<float> weight, base, scale;  // [outputs, n H], [outputs], [1 to 3]

  // Returns the number of rows of W for n streams. joins false: streams are only summed into a
  // branch's input.
  static size_t outputs(size_t n, bool joins, size_t rounds) {
    return n * ((joins ? 2 : 1) + (rounds > 0 ? n : 0));
  }
};

// Computes the numbers in_i, out_j and mix of a row u[n * width] into gates[outputs].
void stream_gates(const StreamGates& g, const float* u, size_t width, float* gates) noexcept;
// Computes the branch's input x above into y[width], from a row u, in f32. Gates are not read if
// there is no W.
void streams_in(const StreamGates& g, const float* gates, const float* u, float* y,
                size_t width) noexcept;
// Computes y_i above into y[n * width], from keys[n * width], value[width] and queries[n * width],
// in f32.
void streams_keyed(size_t n, const float* keys, const float* value, const float* queries, float* y,
                   size_t width) noexcept;
// Replaces the streams of u by those after the branch, whose result is y, in f32.
void streams_out(const StreamGates& g, const float* gates, const float* y, float* u,
                 size_t width) noexcept;

}  // namespace moebius
