// SPDX-License-Identifier: Apache-2.0
#include "nn/convolution_layer.h"

#include <cstring>

#include "base/error.h"
#include "kernels/row_functions.h"

namespace moebius {
namespace {

RecurrentShape shape_of(const ConvolutionLayerSpec& s) {
  return {s.in, s.use == ConvolutionUse::kGated ? s.channels : 0, s.channels, 0,
          ShortConvolution::state_floats(s.channels, s.width)};
}

}  // namespace

ConvolutionLayer::ConvolutionLayer(const ConvolutionLayerSpec& spec,
                                   const std::vector<float>& weight, std::vector<float> bias,
                                   XType type)
    : Recurrent(shape_of(spec)), spec_(spec), type_(type) {
  if (spec.at > spec.in || spec.channels > spec.in - spec.at)
    fail("a convolution of columns {} to {} of rows that have {}", spec.at, spec.at + spec.channels,
         spec.in);
  convolution_ = {ShortConvolution(spec.channels, spec.width, weight, std::move(bias)), spec.at};
  convolution_.of_mixed = spec.use == ConvolutionUse::kGated;
}

// Computes B * x, the input of a gated convolution.
void ConvolutionLayer::convolve(const RecurrentRows& r, const float*, size_t t) const noexcept {
  if (spec_.use != ConvolutionUse::kGated) return;
  const size_t n = spec_.channels;
  const float *B = r.in + t * spec_.in, *x = B + 2 * n;
  float* y = r.mixed + t * n;
  std::memcpy(y, x, n * sizeof(float));
  row_functions().multiply(y, B, n);
  row_functions().round(type_, y, n);
}

void ConvolutionLayer::finish(const RecurrentRows& r, const float* from, size_t t) const noexcept {
  const RowFunctions& f = row_functions();
  const size_t n = spec_.channels;
  const float* in = r.in + t * spec_.in;
  float* y = r.out + t * n;
  apply_convolution(r, from, t, y);
  if (spec_.use == ConvolutionUse::kSilu) f.activate({RowFunction::kSilu}, nullptr, y, y, n);
  if (spec_.use == ConvolutionUse::kAdded) f.add(y, in + spec_.at, n);
  f.round(type_, y, n);
  if (spec_.use != ConvolutionUse::kGated) return;
  f.multiply(y, in + n, n);
  f.round(type_, y, n);
}

}  // namespace moebius
