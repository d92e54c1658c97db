// SPDX-License-Identifier: Apache-2.0
// Linear attention against its definition in double precision, and its promise: pieces of a
// sequence, through kept states, have the bytes of the whole.
#include "nn/delta_net.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "moebius/error.h"
#include "recurrent_util.h"

namespace moebius::delta_net_test {
namespace {

struct DeltaCase {
  DeltaSpec spec{2, 4, 8, 12, 4};
  DeltaWeights weights;
  std::vector<float> in;
  size_t T;

  explicit DeltaCase(size_t tokens) : T(tokens) {
    std::mt19937 rng(3);
    const auto fill = [&](std::vector<float>& v, size_t n) { v = normal_values(rng, n); };
    fill(weights.convolution, spec.channels() * spec.width);
    fill(weights.a_log, spec.value_heads), fill(weights.dt, spec.value_heads);
    fill(weights.norm.weight, spec.value_dim);
    fill(in, T * spec.shape().in);
  }

  std::vector<double> definition() const {
    const size_t C = spec.channels(), K = spec.key_dim, V = spec.value_dim, H = spec.value_heads;
    std::vector<double> out(T * spec.values()), S(H * K * V);
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    const size_t width = spec.shape().in;
    for (size_t t = 0; t < T; ++t) {
      const float *z = in.data() + t * width + C, *b = z + spec.values(), *a = b + H;
      std::vector<double> x(C);
      for (size_t c = 0; c < C; ++c) {
        for (size_t j = 0; j < spec.width; ++j)
          if (t + j + 1 >= spec.width)
            x[c] += double{weights.convolution[c * spec.width + j]} *
                    in[(t + j + 1 - spec.width) * width + c];
        x[c] *= sigmoid(x[c]);
      }
      for (size_t h = 0; h < H; ++h) {
        const size_t g = h / (H / spec.key_heads);
        std::vector<double> q(x.begin() + static_cast<long>(g * K),
                              x.begin() + static_cast<long>(g * K + K));
        std::vector<double> k(x.begin() + static_cast<long>(spec.keys() + g * K),
                              x.begin() + static_cast<long>(spec.keys() + g * K + K));
        double nq = 1e-6, nk = 1e-6;
        for (size_t i = 0; i < K; ++i) nq += q[i] * q[i], nk += k[i] * k[i];
        for (size_t i = 0; i < K; ++i)
          q[i] /= std::sqrt(nq) * std::sqrt(static_cast<double>(K)), k[i] /= std::sqrt(nk);
        const double scale = std::exp(double{weights.a_log[h]}),
                     x_decay = double{a[h]} + weights.dt[h],
                     rate = spec.decay_bound != 0 ? spec.decay_bound * sigmoid(scale * x_decay)
                                                  : -scale * std::log1p(std::exp(x_decay));
        double* s = S.data() + h * K * V;
        std::vector<double> y(V);
        double sum = 0;
        for (size_t c = 0; c < V; ++c) {
          double memory = 0;
          for (size_t i = 0; i < K; ++i)
            s[i * V + c] *= std::exp(rate), memory += k[i] * s[i * V + c];
          const double delta = (x[2 * spec.keys() + h * V + c] - memory) * sigmoid(b[h]);
          for (size_t i = 0; i < K; ++i) s[i * V + c] += k[i] * delta, y[c] += q[i] * s[i * V + c];
          sum += y[c] * y[c];
        }
        for (size_t c = 0; c < V; ++c) {
          const double gate = z[h * V + c];
          out[t * spec.values() + h * V + c] = y[c] /
                                               std::sqrt(sum / static_cast<double>(V) + 1e-6) *
                                               weights.norm.weight[c] * gate * sigmoid(gate);
        }
      }
    }
    return out;
  }
};

TEST(DeltaNet, EqualsItsDefinition) {
  const DeltaCase c(70);
  const std::vector<float> y = run_pieces(DeltaNet(c.spec, c.weights, XType::kF32), c.in, {70});
  const std::vector<double> expected = c.definition();
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 2e-4) << i;
}

TEST(DeltaNet, BoundedDecaysEqualTheirDefinition) {
  DeltaCase c(70);
  c.spec.decay_bound = -5;
  const DeltaNet net(c.spec, c.weights, XType::kF32);
  const std::vector<float> y = run_pieces(net, c.in, {70});
  const std::vector<double> expected = c.definition();
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 2e-4) << i;
  expect_pieces_equal(net, c.in);
}

TEST(DeltaNet, PiecesHaveTheBytesOfTheWhole) {
  const DeltaCase c(70);
  for (const XType type : {XType::kF32, XType::kBf16})
    expect_pieces_equal(DeltaNet(c.spec, c.weights, type), c.in);
}

TEST(DeltaNet, RefusesSizesThatDoNotFit) {
  DeltaCase c(1);
  c.weights.dt.pop_back();
  EXPECT_THROW(DeltaNet(c.spec, c.weights, XType::kF32), Error);
  DeltaCase d(1);
  d.spec.key_heads = 3;
  EXPECT_THROW(DeltaNet(d.spec, d.weights, XType::kF32), Error);
}

}  // namespace
}  // namespace moebius::delta_net_test
