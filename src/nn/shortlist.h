// SPDX-License-Identifier: Apache-2.0
// Finds the greatest outputs of a large dense matrix without reading all of it: an int8 copy gives
// every output within a bound, and the layer itself computes the few that may be among the
// greatest. Their bytes are those of the whole product.
//
// For weights w = s q + e and the row x, with u = 2^-23, the largest rounding error of one step:
//   |w x - score| <= |e| |x| + 2 (K + 16) u |w| |x|
// where |.| is the Euclidean norm and the second term bounds the roundings of both sums
// (docs/numerics.md).
#pragma once
#include <vector>

#include "kernels/oracle.h"
#include "nn/candidates.h"
#include "nn/linear.h"

namespace moebius {

class Shortlist {
 public:
  // Returns whether the layer's outputs can be found so: one dense matrix without bias.
  static bool possible(const LinearLayer& layer);
  // Returns the bytes that a shortlist of the matrix takes.
  static uint64_t bytes(const Problem& dense, const Cpu& cpu);
  // Makes the copy from the layer's packed weights; the layer must outlive it.
  Shortlist(const LinearLayer& layer, ThreadPool& pool, const Cpu& cpu);

  // Writes to row i of y the outputs that wanted[i] lists, and others or -infinity elsewhere.
  // Returns false if a row wants too many outputs or all: y is then undefined, and the caller
  // computes the whole product. An output without a finite bound has the largest f32 as upper one.
  bool forward(const ConstRows& x, const Rows& y, ThreadPool& pool,
               std::span<const ListTokens* const> wanted);
  static constexpr size_t kMostWanted = 1024;

 private:
  bool bound(const float* x, const float* scores);
  void compute(const float* x, std::span<const int32_t> outputs, float* y, ThreadPool& pool) const;

  const LinearLayer& layer_;
  std::unique_ptr<LinearLayer> copy_;
  size_t most_rows_;  // with more rows, all outputs take less time
  // [N] norms of the weights' rounding errors, and of the weights; rounded up. NaN: a weight is not
  // finite.
  std::vector<float> errors_, norms_;
  size_t failures_ = 0, skip_ = 0;  // calls in a row that wanted too many; calls left to skip
  // Buffers of the current call.
  std::vector<float> row_, scores_, lower_, upper_;
  std::vector<int32_t> outputs_;
};

}  // namespace moebius
