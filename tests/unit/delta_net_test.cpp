// SPDX-License-Identifier: Apache-2.0
// Linear attention against its definition in double precision, and its promise: pieces of a
// sequence, through kept states, have the bytes of the whole.
#include "nn/delta_net.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "moebius/error.h"

namespace moebius {
namespace {

struct DeltaCase {
  DeltaSpec spec{2, 4, 8, 12, 4};
  DeltaWeights weights;
  std::vector<float> rows, z, b, a;
  size_t T;

  explicit DeltaCase(size_t tokens) : T(tokens) {
    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    const auto fill = [&](std::vector<float>& v, size_t n) {
      v.resize(n);
      for (float& x : v) x = normal(rng);
    };
    fill(weights.convolution, spec.channels() * spec.width);
    fill(weights.a_log, spec.value_heads), fill(weights.dt, spec.value_heads);
    fill(weights.norm.weight, spec.value_dim);
    fill(rows, T * spec.channels()), fill(z, T * spec.values());
    fill(b, T * spec.value_heads), fill(a, T * spec.value_heads);
  }

  // In pieces, each from the state that the one before left.
  std::vector<float> run(const std::vector<size_t>& pieces, XType type) const {
    const DeltaNet net(spec, weights, type);
    std::vector<float> out(T * spec.values()), mixed(T * spec.channels());
    std::vector<std::vector<float>> states;
    size_t first = 0;
    for (const size_t n : pieces) {
      const DeltaRows r{rows.data() + first * spec.channels(),
                        z.data() + first * spec.values(),
                        b.data() + first * spec.value_heads,
                        a.data() + first * spec.value_heads,
                        spec.values(),
                        spec.value_heads,
                        mixed.data(),
                        out.data() + first * spec.values(),
                        n};
      const float* from = states.empty() ? nullptr : states.back().data();
      // Two runs where there is more than one token: the first keeps its state too.
      std::vector<DeltaRun> runs;
      std::vector<float> middle(spec.state_floats()), after(spec.state_floats());
      if (n > 1) runs.push_back({0, n / 2, from, middle.data()});
      runs.push_back({n / 2 * (n > 1), n, n > 1 ? middle.data() : from, after.data()});
      for (size_t t = 0; t < n; ++t) net.convolve(r, from, t);
      for (size_t h = 0; h < spec.value_heads; ++h) net.scan(r, runs, h);
      for (size_t t = 0; t < n; ++t) net.finish(r, t);
      for (const DeltaRun& run : runs) net.keep_rows(r, run, from);
      if (n > 1) {  // going on from the middle gives the same state
        std::vector<float> again(spec.state_floats());
        const DeltaRows rest{r.rows + n / 2 * spec.channels(),
                             r.z + n / 2 * spec.values(),
                             r.b + n / 2 * spec.value_heads,
                             r.a + n / 2 * spec.value_heads,
                             spec.values(),
                             spec.value_heads,
                             mixed.data(),
                             again.data(),
                             n - n / 2};
        std::vector<float> scrap((n - n / 2) * spec.values());
        DeltaRows r2 = rest;
        r2.out = scrap.data();
        const DeltaRun one{0, n - n / 2, middle.data(), again.data()};
        for (size_t t = 0; t < r2.T; ++t) net.convolve(r2, middle.data(), t);
        for (size_t h = 0; h < spec.value_heads; ++h) net.scan(r2, {&one, 1}, h);
        net.keep_rows(r2, one, middle.data());
        EXPECT_EQ(std::memcmp(again.data(), after.data(), after.size() * 4), 0);
      }
      states.push_back(std::move(after));
      first += n;
    }
    return out;
  }

  std::vector<double> definition() const {
    const size_t C = spec.channels(), K = spec.key_dim, V = spec.value_dim, H = spec.value_heads;
    std::vector<double> out(T * spec.values()), S(H * K * V);
    const auto sigmoid = [](double x) { return 1 / (1 + std::exp(-x)); };
    for (size_t t = 0; t < T; ++t) {
      std::vector<double> x(C);
      for (size_t c = 0; c < C; ++c) {
        for (size_t j = 0; j < spec.width; ++j)
          if (t + j + 1 >= spec.width)
            x[c] += double{weights.convolution[c * spec.width + j]} *
                    rows[(t + j + 1 - spec.width) * C + c];
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
        const double rate = -std::exp(double{weights.a_log[h]}) *
                            std::log1p(std::exp(double{a[t * H + h]} + weights.dt[h]));
        double* s = S.data() + h * K * V;
        std::vector<double> y(V);
        double sum = 0;
        for (size_t c = 0; c < V; ++c) {
          double memory = 0;
          for (size_t i = 0; i < K; ++i)
            s[i * V + c] *= std::exp(rate), memory += k[i] * s[i * V + c];
          const double delta = (x[2 * spec.keys() + h * V + c] - memory) * sigmoid(b[t * H + h]);
          for (size_t i = 0; i < K; ++i) s[i * V + c] += k[i] * delta, y[c] += q[i] * s[i * V + c];
          sum += y[c] * y[c];
        }
        for (size_t c = 0; c < V; ++c) {
          const double gate = z[t * spec.values() + h * V + c];
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
  const std::vector<float> y = c.run({70}, XType::kF32);
  const std::vector<double> expected = c.definition();
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 2e-4) << i;
}

TEST(DeltaNet, PiecesHaveTheBytesOfTheWhole) {
  const DeltaCase c(70);
  for (const XType type : {XType::kF32, XType::kBf16}) {
    const std::vector<float> whole = c.run({70}, type);
    for (const auto& pieces :
         {std::vector<size_t>(70, 1), std::vector<size_t>{1, 2, 3, 30, 34}, {69, 1}}) {
      const std::vector<float> y = c.run(pieces, type);
      EXPECT_EQ(std::memcmp(y.data(), whole.data(), y.size() * 4), 0);
    }
  }
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
}  // namespace moebius
