// SPDX-License-Identifier: Apache-2.0
// Mamba-1 against its definition in double precision, and its promise: pieces of a sequence, through
// kept states, have the bytes of the whole.
#include "nn/mamba1.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "moebius/error.h"
#include "nn/convolution_layer.h"
#include "recurrent_util.h"

namespace moebius::mamba1_test {
namespace {

double silu_of(double x) { return x / (1 + std::exp(-x)); }

// More features than one part of the state, and not a multiple of it.
struct SelectiveCase {
  Mamba1Spec spec{Mamba1Spec::kPart + 13, 5, 7, 4};
  std::vector<float> a_log, d, in;
  size_t T;

  explicit SelectiveCase(size_t tokens) : T(tokens) {
    std::mt19937 rng(7);
    a_log = normal_values(rng, spec.features * spec.state), d = normal_values(rng, spec.features);
    in = normal_values(rng, T * (3 * spec.features + 2 * spec.state));
  }
  SelectiveScan scan(XType type) const { return {spec, a_log, d, type}; }

  std::vector<double> definition() const {
    const size_t I = spec.features, N = spec.state, width = 3 * I + 2 * N;
    std::vector<double> out(T * I), S(I * N);
    for (size_t t = 0; t < T; ++t)
      for (size_t i = 0; i < I; ++i) {
        const float *row = in.data() + t * width, *B = row + 3 * I, *C = B + N;
        const double x = row[i], step = std::log1p(std::exp(double{row[2 * I + i]}));
        double y = d[i] * x;
        for (size_t n = 0; n < N; ++n) {
          double& s = S[i * N + n];
          s = s * std::exp(-std::exp(double{a_log[i * N + n]}) * step) + B[n] * step * x;
          y += C[n] * s;
        }
        out[t * I + i] = y * silu_of(row[I + i]);
      }
    return out;
  }
};

TEST(Mamba1, ScanEqualsItsDefinition) {
  const SelectiveCase c(70);
  const std::vector<float> y = run_pieces(c.scan(XType::kF32), c.in, {70});
  const std::vector<double> expected = c.definition();
  ASSERT_EQ(y.size(), expected.size());
  for (size_t i = 0; i < y.size(); ++i) ASSERT_NEAR(y[i], expected[i], 5e-5) << i;
}

TEST(Mamba1, ConvolutionEqualsItsDefinition) {
  const size_t in = 11, C = 6, width = 4, T = 40;
  std::mt19937 rng(3);
  const std::vector<float> rows = normal_values(rng, T * in), w = normal_values(rng, C * width),
                           bias = normal_values(rng, C);
  const std::vector<float> y = run_pieces(
      ConvolutionLayer({ConvolutionUse::kSilu, in, 0, C, width}, w, bias, XType::kF32), rows, {T});
  for (size_t t = 0; t < T; ++t)
    for (size_t c = 0; c < C; ++c) {
      double sum = bias[c];
      for (size_t j = 0; j < width; ++j)
        if (t + j + 1 >= width)
          sum += double{w[c * width + j]} * rows[(t + j + 1 - width) * in + c];
      ASSERT_NEAR(y[t * C + c], silu_of(sum), 2e-5) << t << ' ' << c;
    }
}

TEST(Mamba1, PiecesHaveTheBytesOfTheWhole) {
  const SelectiveCase c(70);
  std::mt19937 rng(4);
  const std::vector<float> w = normal_values(rng, 9 * 4), rows = normal_values(rng, 70 * 18);
  for (const XType type : {XType::kF32, XType::kBf16}) {
    expect_pieces_equal(c.scan(type), c.in);
    expect_pieces_equal(ConvolutionLayer({ConvolutionUse::kSilu, 18, 0, 9, 4}, w, {}, type), rows);
  }
}

TEST(Mamba1, RefusesSizesThatDoNotFit) {
  SelectiveCase c(1);
  c.d.pop_back();
  EXPECT_THROW(c.scan(XType::kF32), Error);
  SelectiveCase a(1);
  a.a_log.pop_back();
  EXPECT_THROW(a.scan(XType::kF32), Error);
}

}  // namespace
}  // namespace moebius::mamba1_test
