// SPDX-License-Identifier: Apache-2.0
// Hyper-connections against their definition (nn/streams.h) in double precision.
#include "nn/streams.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace moebius::streams_test {
namespace {

std::vector<float> waves(size_t n, double step) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i)
    x[i] = static_cast<float>(std::sin(static_cast<double>(i) * step) * 1.5);
  return x;
}

struct StreamCase {
  StreamGates g;
  size_t width = 37;
  std::vector<float> u, y;

  StreamCase(size_t n, size_t rounds, float out_epsilon, float magnitude) {
    g.streams = n, g.rounds = rounds, g.out_epsilon = out_epsilon, g.magnitude = magnitude;
    const size_t outputs = StreamGates::outputs(n, true, rounds);
    g.weight = waves(outputs * n * width, 0.37), g.base = waves(outputs, 1.1);
    g.scale = {0.3f, 0.7f, 0.2f};
    u = waves(n * width, 0.91), y = waves(width, 0.53);
  }

  std::vector<double> gates() const {
    const size_t n = g.streams, all = n * width;
    double squares = 0;
    for (const float v : u) squares += double{v} * v;
    const double r = 1 / std::sqrt(squares / static_cast<double>(all) + g.norm_epsilon);
    const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
    std::vector<double> out;
    for (size_t i = 0; i < g.base.size(); ++i) {
      double m = 0;
      for (size_t k = 0; k < all; ++k) m += double{g.weight[i * all + k]} * u[k];
      m = m * r * g.scale[std::min<size_t>(i / n, 2)] + g.base[i];
      out.push_back(i < n       ? sigmoid(m) + g.epsilon
                    : i < 2 * n ? g.magnitude * sigmoid(m) + g.out_epsilon
                                : m);
    }
    if (g.rounds == 0) return out;
    double* c = out.data() + 2 * n;
    for (size_t i = 0; i < n; ++i) {
      double sum = 0;
      for (size_t j = 0; j < n; ++j) sum += std::exp(c[i * n + j]);
      for (size_t j = 0; j < n; ++j) c[i * n + j] = std::exp(c[i * n + j]) / sum + g.epsilon;
    }
    const auto by_columns = [&](bool columns) {
      for (size_t i = 0; i < n; ++i) {
        double sum = g.epsilon;
        for (size_t j = 0; j < n; ++j) sum += columns ? c[j * n + i] : c[i * n + j];
        for (size_t j = 0; j < n; ++j) (columns ? c[j * n + i] : c[i * n + j]) /= sum;
      }
    };
    by_columns(true);
    for (size_t i = 1; i < g.rounds; ++i) by_columns(false), by_columns(true);
    return out;
  }
};

TEST(Streams, GatesInAndOutEqualTheirDefinition) {
  for (const auto& [n, rounds, epsilon, magnitude] :
       {std::tuple<size_t, size_t, float, float>{4, 20, 0, 2}, {4, 0, 1e-6f, 1.5f}, {3, 1, 0, 2}}) {
    const StreamCase c(n, rounds, epsilon, magnitude);
    std::vector<float> gates(c.g.base.size()), x(c.width), u = c.u;
    stream_gates(c.g, u.data(), c.width, gates.data());
    const std::vector<double> expected = c.gates();
    for (size_t i = 0; i < gates.size(); ++i) ASSERT_NEAR(gates[i], expected[i], 2e-6) << i;
    streams_in(c.g, gates.data(), u.data(), x.data(), c.width);
    streams_out(c.g, gates.data(), c.y.data(), u.data(), c.width);
    for (size_t k = 0; k < c.width; ++k) {
      double in = 0;
      for (size_t i = 0; i < n; ++i) in += expected[i] * c.u[i * c.width + k];
      ASSERT_NEAR(x[k], in, 1e-5);
      for (size_t j = 0; j < n; ++j) {
        double to = expected[n + j] * c.y[k];
        for (size_t i = 0; i < n; ++i) {
          const double mix = rounds > 0 ? expected[2 * n + i * n + j] : i == j ? 1 : 0;
          to += mix * c.u[i * c.width + k];
        }
        ASSERT_NEAR(u[j * c.width + k], to, 1e-5) << "stream " << j;
      }
    }
  }
}

TEST(Streams, KeysGateTheirValueForEachStream) {
  constexpr size_t n = 3, width = 21;
  std::vector<float> keys = waves(n * width, 0.37), queries = waves(n * width, 0.91);
  std::fill_n(keys.begin() + width, width, 0.0f);  // a product of 0 has no sign
  const std::vector<float> value = waves(width, 0.53);
  std::vector<float> y(n * width);
  streams_keyed(n, keys.data(), value.data(), queries.data(), y.data(), width);
  for (size_t i = 0; i < n; ++i) {
    double g = 0;
    for (size_t k = 0; k < width; ++k) g += double{keys[i * width + k]} * queries[i * width + k];
    g /= std::sqrt(double{width});
    const double root = g == 0 ? 0 : (g < 0 ? -1 : 1) * std::sqrt(std::max(std::fabs(g), 1e-6));
    for (size_t k = 0; k < width; ++k)
      ASSERT_NEAR(y[i * width + k], value[k] / (1 + std::exp(-root)), 2e-6) << i;
  }
}

TEST(Streams, WithoutGatesTheyAreTheirMean) {
  const StreamCase c(3, 0, 0, 2);
  StreamGates mean;
  mean.streams = 3;
  std::vector<float> x(c.width);
  streams_in(mean, nullptr, c.u.data(), x.data(), c.width);
  for (size_t k = 0; k < c.width; ++k) {
    const double sum = double{c.u[k]} + c.u[c.width + k] + c.u[2 * c.width + k];
    ASSERT_NEAR(x[k], sum / 3, 1e-6) << k;
  }
}

}  // namespace
}  // namespace moebius::streams_test
