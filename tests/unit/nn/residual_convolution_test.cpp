// SPDX-License-Identifier: Apache-2.0
// A convolution that is added to what it reads, against its definition; pieces of a sequence, through
// kept states, have the bytes of the whole.
#include "nn/residual_convolution.h"

#include <gtest/gtest.h>

#include <random>

#include "moebius/error.h"
#include "recurrent_util.h"

namespace moebius::residual_convolution_test {
namespace {

TEST(ResidualConvolution, EqualsItsDefinition) {
  const size_t in = 13, at = 4, C = 7, width = 4, T = 50;
  std::mt19937 rng(11);
  const std::vector<float> rows = normal_values(rng, T * in), w = normal_values(rng, C * width);
  const std::vector<float> y =
      run_pieces(ResidualConvolution(in, at, C, width, w, XType::kF32), rows, {T});
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

TEST(ResidualConvolution, PiecesHaveTheBytesOfTheWhole) {
  std::mt19937 rng(12);
  const std::vector<float> w = normal_values(rng, 7 * 4), rows = normal_values(rng, 70 * 13);
  for (const XType type : {XType::kF32, XType::kBf16})
    expect_pieces_equal(ResidualConvolution(13, 4, 7, 4, w, type), rows);
}

TEST(ResidualConvolution, RefusesColumnsThatAreNotThere) {
  EXPECT_THROW(ResidualConvolution(13, 7, 7, 4, std::vector<float>(28), XType::kF32), Error);
  EXPECT_THROW(ResidualConvolution(13, 4, 7, 4, std::vector<float>(27), XType::kF32), Error);
}

}  // namespace
}  // namespace moebius::residual_convolution_test
