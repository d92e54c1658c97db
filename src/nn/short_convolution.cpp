// SPDX-License-Identifier: Apache-2.0
#include "nn/short_convolution.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/row_functions.h"

namespace moebius {

ShortConvolution::ShortConvolution(size_t channels, size_t width, const std::vector<float>& weight,
                                   std::vector<float> bias)
    : channels_(channels), width_(width), bias_(std::move(bias)) {
  if (width == 0 || width > kMostTaps || weight.size() != channels * width ||
      (!bias_.empty() && bias_.size() != channels))
    fail("a convolution of {} channels and {} taps has {} weights and {} biases", channels, width,
         weight.size(), bias_.size());
  taps_.resize(weight.size());
  for (size_t c = 0; c < channels; ++c)
    for (size_t j = 0; j < width; ++j) taps_[j * channels + c] = weight[c * width + j];
}

// Returns row t - back of the sequence, from this step or from the state before it; null before the
// sequence's first row.
const float* ShortConvolution::row_before(const float* rows, size_t stride, const float* kept,
                                          size_t t, size_t back) const noexcept {
  if (back <= t) return rows + (t - back) * stride;
  return kept == nullptr ? nullptr : kept + (width_ - 1 - (back - t)) * channels_;
}

void ShortConvolution::apply(const float* rows, size_t stride, const float* kept, size_t t,
                             float* y) const noexcept {
  const float* x[kMostTaps];
  for (size_t j = 0; j < width_; ++j) x[j] = row_before(rows, stride, kept, t, width_ - 1 - j);
  row_functions().convolve({width_, x, taps_.data(), bias_.empty() ? nullptr : bias_.data()}, y,
                           channels_);
}

void ShortConvolution::keep(const float* rows, size_t stride, const float* kept, size_t end,
                            float* to) const noexcept {
  for (size_t i = 0; i + 1 < width_; ++i) {
    // Kept row i is the one `width - 1 - i` before token `end`.
    const float* x = row_before(rows, stride, kept, end - 1, width_ - 2 - i);
    if (x == nullptr)
      std::fill_n(to + i * channels_, channels_, 0.0f);
    else
      std::memcpy(to + i * channels_, x, channels_ * sizeof(float));
  }
}

}  // namespace moebius
