// SPDX-License-Identifier: Apache-2.0
// Lightning attention against its definition in double precision, and its pieces against the whole.
#include "nn/lightning_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "moebius/error.h"
#include "recurrent_util.h"

namespace moebius::lightning_attention_test {
namespace {

TEST(LightningAttention, EqualsItsDefinitionAndPiecesHaveTheBytesOfTheWhole) {
  const LightningSpec spec{3, 20};
  std::mt19937 rng(13);
  const size_t D = spec.head_dim, n = spec.features(), T = 70, width = spec.shape().in;
  const std::vector<float> rates = {0.03f, 0.4f, 2.0f}, weight = normal_values(rng, n),
                           in = normal_values(rng, T * width);
  const Norm norm{NormKind::kRms, 1e-6f, weight, {}};
  const LightningAttention net(spec, rates, norm, XType::kF32);
  const std::vector<float> y = run_pieces(net, in, {T});
  const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
  std::vector<double> S(n * D);
  for (size_t t = 0; t < T; ++t) {
    const float* row = in.data() + t * width;
    std::vector<double> out(n);
    double sum = 0;
    for (size_t h = 0; h < spec.heads; ++h)
      for (size_t c = 0; c < D; ++c) {
        const auto at = [&](size_t part, size_t i) {
          const double x = row[(3 * h + part) * D + i];
          return x * sigmoid(x);
        };
        for (size_t i = 0; i < D; ++i) {
          double& s = S[(h * D + i) * D + c];
          s = s * std::exp(-double{rates[h]}) + at(1, i) * at(2, c);
          out[h * D + c] += at(0, i) * s;
        }
        sum += out[h * D + c] * out[h * D + c];
      }
    for (size_t i = 0; i < n; ++i)
      ASSERT_NEAR(y[t * n + i],
                  out[i] / std::sqrt(sum / static_cast<double>(n) + 1e-6) * weight[i] *
                      sigmoid(row[3 * n + i]),
                  2e-5)
          << t << " " << i;
  }
  expect_pieces_equal(net, in);
  expect_pieces_equal(LightningAttention(spec, rates, norm, XType::kBf16), in);
  EXPECT_THROW(LightningAttention({4, 20}, rates, norm, XType::kF32), Error);
}

}  // namespace
}  // namespace moebius::lightning_attention_test
