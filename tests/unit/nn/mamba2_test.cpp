// SPDX-License-Identifier: Apache-2.0
// Mamba-2 against its definition in double precision, and its promise: pieces of a sequence, through
// kept states, have the bytes of the whole.
#include "nn/mamba2.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "moebius/error.h"
#include "recurrent_util.h"

namespace moebius::mamba2_test {
namespace {

struct MambaCase {
  Mamba2Spec spec{4, 12, 2, 8, 4, 2, 0.05f, 3.0f};
  Mamba2Weights weights;
  std::vector<float> in;
  size_t T;

  explicit MambaCase(size_t tokens) : T(tokens) {
    std::mt19937 rng(5);
    const auto fill = [&](std::vector<float>& v, size_t n) { v = normal_values(rng, n); };
    fill(weights.convolution, spec.channels() * spec.width);
    fill(weights.convolution_bias, spec.channels());
    fill(weights.a_log, spec.heads), fill(weights.d, spec.heads), fill(weights.dt_bias, spec.heads);
    fill(weights.norm, spec.features());
    fill(in, T * spec.shape().in);
  }

  std::vector<double> definition() const {
    const size_t C = spec.channels(), P = spec.head_dim, N = spec.state, I = spec.features(),
                 width = spec.shape().in;
    const auto silu = [](double x) { return x / (1 + std::exp(-x)); };
    std::vector<double> out(T * I), S(spec.heads * N * P);
    for (size_t t = 0; t < T; ++t) {
      const float* row = in.data() + t * width;
      std::vector<double> x(C);
      for (size_t c = 0; c < C; ++c) {
        x[c] = weights.convolution_bias[c];
        for (size_t j = 0; j < spec.width; ++j)
          if (t + j + 1 >= spec.width)
            x[c] += double{weights.convolution[c * spec.width + j]} *
                    in[(t + j + 1 - spec.width) * width + I + c];
        x[c] = silu(x[c]);
      }
      for (size_t h = 0; h < spec.heads; ++h) {
        const size_t g = h / (spec.heads / spec.groups);
        double d = std::log1p(std::exp(double{row[I + C + h]} + weights.dt_bias[h]));
        d = std::clamp(d, double{spec.least_step}, double{spec.most_step});
        const double decay = std::exp(-std::exp(double{weights.a_log[h]}) * d);
        for (size_t p = 0; p < P; ++p) {
          double y = weights.d[h] * x[h * P + p];
          for (size_t n = 0; n < N; ++n) {
            double& s = S[(h * N + n) * P + p];
            s = s * decay + x[I + g * N + n] * x[h * P + p] * d;
            y += x[I + spec.groups * N + g * N + n] * s;
          }
          out[t * I + h * P + p] = y * silu(row[h * P + p]);
        }
      }
      const size_t part = I / spec.norm_groups;
      for (size_t at = 0; at < I; at += part) {
        double sum = 0;
        for (size_t i = at; i < at + part; ++i) sum += out[t * I + i] * out[t * I + i];
        for (size_t i = at; i < at + part; ++i)
          out[t * I + i] *= weights.norm[i] / std::sqrt(sum / static_cast<double>(part) + 1e-6);
      }
    }
    return out;
  }
};

TEST(Mamba2, EqualsItsDefinition) {
  const MambaCase c(70);
  const std::vector<float> y = run_pieces(Mamba2(c.spec, c.weights, XType::kF32), c.in, {70});
  const std::vector<double> expected = c.definition();
  ASSERT_EQ(y.size(), expected.size());
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 2e-5) << i;
}

TEST(Mamba2, PiecesHaveTheBytesOfTheWhole) {
  const MambaCase c(70);
  for (const XType type : {XType::kF32, XType::kBf16})
    expect_pieces_equal(Mamba2(c.spec, c.weights, type), c.in);
}

TEST(Mamba2, RefusesSizesThatDoNotFit) {
  MambaCase c(1);
  c.weights.dt_bias.pop_back();
  EXPECT_THROW(Mamba2(c.spec, c.weights, XType::kF32), Error);
  MambaCase d(1);
  d.spec.groups = 3;
  EXPECT_THROW(Mamba2(d.spec, d.weights, XType::kF32), Error);
  MambaCase e(1);
  e.weights.convolution_bias.pop_back();
  EXPECT_THROW(Mamba2(e.spec, e.weights, XType::kF32), Error);
}

}  // namespace
}  // namespace moebius::mamba2_test
