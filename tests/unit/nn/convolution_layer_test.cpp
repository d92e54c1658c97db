// SPDX-License-Identifier: Apache-2.0
// Layers of a convolution against their definitions; pieces of a sequence, through kept states, have
// the bytes of the whole.
#include "nn/convolution_layer.h"

#include <gtest/gtest.h>

#include <random>

#include "moebius/error.h"
#include "recurrent_util.h"

namespace moebius::convolution_layer_test {
namespace {

// A convolution of 7 of 13 columns with 4 taps, added to what it reads.
ConvolutionLayer added(size_t at, const std::vector<float>& weight, XType type) {
  return {{ConvolutionUse::kAdded, 13, at, 7, 4}, weight, {}, type};
}

TEST(GatedConvolution, EqualsItsDefinitionAndPiecesHaveTheBytesOfTheWhole) {
  const GatedConvolutionSpec spec{20, 3};
  std::mt19937 rng(9);
  const size_t C = spec.channels, T = 70;
  const std::vector<float> weight = normal_values(rng, C * spec.width),
                           bias = normal_values(rng, C), in = normal_values(rng, T * 3 * C);
  const ConvolutionLayer net(spec.layer(), weight, bias, XType::kF32);
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
  expect_pieces_equal(ConvolutionLayer(spec.layer(), weight, bias, XType::kBf16), in);
  EXPECT_THROW(ConvolutionLayer(spec.layer(), bias, bias, XType::kF32), Error);
}

TEST(AddedConvolution, EqualsItsDefinition) {
  const size_t in = 13, at = 4, C = 7, width = 4, T = 50;
  std::mt19937 rng(11);
  const std::vector<float> rows = normal_values(rng, T * in), w = normal_values(rng, C * width);
  const std::vector<float> y = run_pieces(added(at, w, XType::kF32), rows, {T});
  ASSERT_EQ(y.size(), T * C);
  for (size_t t = 0; t < T; ++t)
    for (size_t c = 0; c < C; ++c) {
      double sum = rows[t * in + at + c];
      for (size_t j = 0; j < width; ++j)
        if (t + j + 1 >= width)
          sum += double{w[c * width + j]} * rows[(t + j + 1 - width) * in + at + c];
      ASSERT_NEAR(y[t * C + c], sum, 1e-5) << t << ' ' << c;
    }
}

TEST(AddedConvolution, PiecesHaveTheBytesOfTheWhole) {
  std::mt19937 rng(12);
  const std::vector<float> w = normal_values(rng, 7 * 4), rows = normal_values(rng, 70 * 13);
  for (const XType type : {XType::kF32, XType::kBf16}) expect_pieces_equal(added(4, w, type), rows);
}

TEST(AddedConvolution, RefusesColumnsThatAreNotThere) {
  EXPECT_THROW(added(7, std::vector<float>(28), XType::kF32), Error);
  EXPECT_THROW(added(4, std::vector<float>(27), XType::kF32), Error);
}

}  // namespace
}  // namespace moebius::convolution_layer_test
