// SPDX-License-Identifier: Apache-2.0
// A causal convolution over the last few tokens, separately for each channel:
//
//   y[t] = bias + sum over j of w[j] * x[t - (width - 1) + j], in ascending j
//
// Its state is the last width - 1 rows of x, oldest first.
#pragma once
#include <cstddef>
#include <vector>

namespace moebius {

class ShortConvolution {
 public:
  static constexpr size_t kMostTaps = 64;

  ShortConvolution() = default;
  // weight: [channels, width], bias: [channels] or empty. Throws Error for sizes that do not fit.
  ShortConvolution(size_t channels, size_t width, const std::vector<float>& weight,
                   std::vector<float> bias);
  static size_t state_floats(size_t channels, size_t width) { return (width - 1) * channels; }

  // Computes y[t] into y, [channels]. Rows are `stride` floats apart; `kept` is the state before
  // row 0 (null: the sequence begins).
  void apply(const float* rows, size_t stride, const float* kept, size_t t,
             float* y) const noexcept;
  // Writes the state after row end - 1 to `to`.
  void keep(const float* rows, size_t stride, const float* kept, size_t end,
            float* to) const noexcept;

 private:
  const float* row_before(const float* rows, size_t stride, const float* kept, size_t t,
                          size_t back) const noexcept;
  size_t channels_ = 0, width_ = 1;
  std::vector<float> taps_, bias_;  // [width, channels], [channels]
};

}  // namespace moebius
