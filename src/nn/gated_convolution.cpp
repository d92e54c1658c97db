// SPDX-License-Identifier: Apache-2.0
#include "nn/gated_convolution.h"

#include <cstring>

#include "kernels/row_functions.h"

namespace moebius {

GatedConvolution::GatedConvolution(const GatedConvolutionSpec& spec,
                                   const std::vector<float>& weight, std::vector<float> bias,
                                   XType type)
    : Recurrent(spec.shape()),
      channels_(spec.channels),
      type_(type),
      convolution_(spec.channels, spec.width, weight, std::move(bias)) {}

// Computes B * x, the input of the convolution.
void GatedConvolution::convolve(const RecurrentRows& r, const float*, size_t t) const noexcept {
  const float *B = r.in + t * shape().in, *x = B + 2 * channels_;
  float* y = r.mixed + t * channels_;
  std::memcpy(y, x, channels_ * sizeof(float));
  row_functions().multiply(y, B, channels_);
  row_functions().round(type_, y, channels_);
}

void GatedConvolution::finish(const RecurrentRows& r, const float* from, size_t t) const noexcept {
  const float* C = r.in + t * shape().in + channels_;
  float* y = r.out + t * channels_;
  convolution_.apply(r.mixed, channels_, from, t, y);
  row_functions().round(type_, y, channels_);
  row_functions().multiply(y, C, channels_);
  row_functions().round(type_, y, channels_);
}

void GatedConvolution::keep(const RecurrentRows& r, const RecurrentRun& run,
                            const float* from) const noexcept {
  convolution_.keep(r.mixed, channels_, from, run.end, run.to);
}

}  // namespace moebius
