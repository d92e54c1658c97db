// SPDX-License-Identifier: Apache-2.0
// Makes layers of a short convolution (nn/short_convolution.h), whose state is the convolution's.
#pragma once
#include <cstddef>
#include <vector>

#include "kernels/kernel.h"
#include "nn/recurrent.h"

namespace moebius {

// Says what a layer makes of a convolution.
enum class ConvolutionUse : uint8_t {
  kSilu,   // y = silu(convolution of x + bias)
  kAdded,  // y = x + convolution of x
  kGated,  // y = C * convolution of (B * x), of rows [B | C | x]; replaces attention in LFM2
};

// Describes a convolution of columns [at, at + channels) of rows with `in` columns.
struct ConvolutionLayerSpec {
  ConvolutionUse use;
  size_t in, at, channels, width;
};

struct GatedConvolutionSpec {
  size_t channels = 0, width = 3;

  ConvolutionLayerSpec layer() const {
    return {ConvolutionUse::kGated, 3 * channels, 0, channels, width};
  }
  RecurrentShape shape() const {
    return {3 * channels, channels, channels, 0, ShortConvolution::state_floats(channels, width)};
  }
};

class ConvolutionLayer final : public Recurrent {
 public:
  // weight: [channels, width], bias: [channels] or empty. Throws Error for sizes that do not fit.
  ConvolutionLayer(const ConvolutionLayerSpec& spec, const std::vector<float>& weight,
                   std::vector<float> bias, XType type);

  void convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;

 private:
  ConvolutionLayerSpec spec_;
  XType type_;
};

}  // namespace moebius
