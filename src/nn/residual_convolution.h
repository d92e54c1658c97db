// SPDX-License-Identifier: Apache-2.0
// Adds a short convolution to its input: y = x + convolution(x), for some columns of the rows. The
// state is the convolution's (nn/short_convolution.h).
#pragma once
#include <cstddef>
#include <span>
#include <vector>

#include "kernels/kernel.h"
#include "nn/recurrent.h"
#include "nn/short_convolution.h"

namespace moebius {

class ResidualConvolution final : public Recurrent {
 public:
  // Convolves columns [at, at + channels) of rows with `in` columns; weight: [channels, width].
  // Throws Error for sizes that do not fit.
  ResidualConvolution(size_t in, size_t at, size_t channels, size_t width,
                      const std::vector<float>& weight, XType type);

  void finish(const RecurrentRows& r, const float* from, size_t t) const noexcept override;
  void keep(const RecurrentRows& r, const RecurrentRun& run,
            const float* from) const noexcept override;

 private:
  size_t at_, channels_;
  XType type_;
  ShortConvolution convolution_;
};

}  // namespace moebius
