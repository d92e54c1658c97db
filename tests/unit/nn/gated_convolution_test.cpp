// SPDX-License-Identifier: Apache-2.0
// A gated convolution against its definition, and its pieces against the whole.
#include "nn/gated_convolution.h"

#include <gtest/gtest.h>

#include "moebius/error.h"
#include "recurrent_util.h"

namespace moebius::gated_convolution_test {
namespace {

TEST(GatedConvolution, EqualsItsDefinitionAndPiecesHaveTheBytesOfTheWhole) {
  const GatedConvolutionSpec spec{20, 3};
  std::mt19937 rng(9);
  const size_t C = spec.channels, T = 70;
  const std::vector<float> weight = normal_values(rng, C * spec.width),
                           bias = normal_values(rng, C), in = normal_values(rng, T * 3 * C);
  const GatedConvolution net(spec, weight, bias, XType::kF32);
  const std::vector<float> y = run_pieces(net, in, {T});
  for (size_t t = 0; t < T; ++t)
    for (size_t c = 0; c < C; ++c) {
      double sum = bias[c];
      for (size_t j = 0; j < spec.width; ++j)
        if (t + j + 1 >= spec.width) {
          const float* row = in.data() + (t + j + 1 - spec.width) * 3 * C;
          sum += double{weight[c * spec.width + j]} * row[c] * row[2 * C + c];
        }
      ASSERT_NEAR(y[t * C + c], in[t * 3 * C + C + c] * sum, 1e-5) << t << " " << c;
    }
  expect_pieces_equal(net, in);
  expect_pieces_equal(GatedConvolution(spec, weight, bias, XType::kBf16), in);
  EXPECT_THROW(GatedConvolution(spec, bias, bias, XType::kF32), Error);
}

}  // namespace
}  // namespace moebius::gated_convolution_test
