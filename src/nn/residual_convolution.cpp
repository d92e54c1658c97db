// SPDX-License-Identifier: Apache-2.0
#include "nn/residual_convolution.h"

#include "base/error.h"
#include "kernels/row_functions.h"

namespace moebius {

ResidualConvolution::ResidualConvolution(size_t in, size_t at, size_t channels, size_t width,
                                         const std::vector<float>& weight, XType type)
    : Recurrent({in, 0, channels, 0, ShortConvolution::state_floats(channels, width)}),
      at_(at),
      channels_(channels),
      type_(type),
      convolution_(channels, width, weight, {}) {
  if (at > in || channels > in - at)
    fail("a convolution of columns {} to {} of rows that have {}", at, at + channels, in);
}

void ResidualConvolution::finish(const RecurrentRows& r, const float* from,
                                 size_t t) const noexcept {
  float* y = r.out + t * channels_;
  convolution_.apply(r.in + at_, shape().in, from, t, y);
  row_functions().add(y, r.in + t * shape().in + at_, channels_);
  row_functions().round(type_, y, channels_);
}

void ResidualConvolution::keep(const RecurrentRows& r, const RecurrentRun& run,
                               const float* from) const noexcept {
  convolution_.keep(r.in + at_, shape().in, from, run.end, run.to);
}

}  // namespace moebius
