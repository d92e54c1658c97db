// SPDX-License-Identifier: Apache-2.0
// A short convolution between two gates, which replaces attention in LFM2: y = C * convolution(B *
// x). A row is [B | C | x]; the state is the convolution's.
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/kernel.h"
#include "nn/recurrent.h"
#include "nn/short_convolution.h"

namespace moebius {

struct GatedConvolutionSpec {
  size_t channels = 0, width = 3;

  RecurrentShape shape() const {
    return {3 * channels, channels, channels, 0, ShortConvolution::state_floats(channels, width)};
  }
};

class GatedConvolution : public Recurrent {
 public:
  // Throws Error for sizes that do not fit.
  GatedConvolution(const GatedConvolutionSpec& spec, const std::vector<float>& weight,
                   std::vector<float> bias, XType type);

  void convolve(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void keep(const RecurrentRows& r, const RecurrentRun& run,
            const float* from) const noexcept override;

 private:
  size_t channels_;
  XType type_;
  ShortConvolution convolution_;
};

}  // namespace moebius
