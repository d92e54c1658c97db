// SPDX-License-Identifier: Apache-2.0
// Activations of expert layers: published vectors, every kind against its scalar definition at
// every tail length, parameters.
#include "nn/activation.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/error.h"
#include "base/math_functions.h"

namespace moebius::activation_test {
namespace {

float apply(const ActivationSpec& spec, float gate, float up) {
  float y = 0;
  apply_activation(spec, &gate, &up, &y, 1);
  return y;
}

ActivationSpec of(ActivationKind kind) {
  ActivationSpec s;
  s.kind = kind;
  return s;
}

TEST(Activation, PublishedVectors) {
  const ActivationSpec oai = of(ActivationKind::kSwigluOai), silu = of(ActivationKind::kSilu),
                       step = of(ActivationKind::kSwigluStep);
  EXPECT_NEAR(apply(oai, 1, 2), 2.5373873f, 1e-6);
  EXPECT_NEAR(apply(oai, -1, 2), -0.4626127f, 1e-6);
  EXPECT_NEAR(apply(oai, 8, -9), -41.9997188f, 1e-5);
  EXPECT_EQ(apply(oai, 0, 5), 0.0f);
  EXPECT_NEAR(apply(silu, 1, 2), 1.4621172f, 1e-6);
  EXPECT_NEAR(apply(silu, -1, 2), -0.5378828f, 1e-6);
  EXPECT_NEAR(apply(silu, 8, -9), -71.9758548f, 1e-4);
  EXPECT_NEAR(apply(step, 8, -9), -49.0f, 1e-5);
}

TEST(Activation, ParametersAreHonoured) {
  const auto sigmoid = [](double v) { return 1 / (1 + std::exp(-v)); };
  ActivationSpec s = of(ActivationKind::kSilu);
  s.limit = 2.0f;
  EXPECT_NEAR(apply(s, 5, -9), 2 * sigmoid(2) * -2, 1e-6);
  s = of(ActivationKind::kSwigluOai);
  s.limit = 3.0f;
  s.alpha = 0.5f;
  s.beta = 0.25f;
  EXPECT_NEAR(apply(s, 5, 1), 3 * sigmoid(1.5) * 1.25, 1e-6);
  s = of(ActivationKind::kSwigluStep);
  s.limit = 1.5f;
  EXPECT_NEAR(apply(s, 9, 4), 2.25, 1e-6);
  s = of(ActivationKind::kSitu);
  s.situ_b = 2.0f;
  EXPECT_NEAR(apply(s, 3, 4), 2 * std::tanh(1.5) * sigmoid(3) * 4, 1e-5);
  s.situ_lb = 3.0f;
  EXPECT_NEAR(apply(s, 3, 4), 2 * std::tanh(1.5) * sigmoid(3) * 3 * std::tanh(4.0 / 3), 1e-5);
  EXPECT_EQ(apply(of(ActivationKind::kRelu2NoMul), 100, 3), 9.0f);
  EXPECT_EQ(apply(of(ActivationKind::kRelu2NoMul), 100, -3), 0.0f);
}

TEST(Activation, RowsOfAnyLengthEqualTheScalar) {
  for (int kind = 0; kind < 10; ++kind) {
    ActivationSpec s = of(static_cast<ActivationKind>(kind));
    for (size_t n = 0; n < 40; ++n) {
      std::vector<float> gate(n), up(n), y(n + 1, 77.0f);
      for (size_t i = 0; i < n; ++i) {
        gate[i] = static_cast<float>(i) * 0.37f - 5;
        up[i] = 4 - static_cast<float>(i) * 0.21f;
      }
      apply_activation(s, gate.data(), up.data(), y.data(), n);
      for (size_t i = 0; i < n; ++i) EXPECT_EQ(y[i], apply(s, gate[i], up[i])) << name_of(s.kind);
      EXPECT_EQ(y[n], 77.0f) << "wrote beyond the row";
      if (is_gated(s.kind)) {
        apply_activation(s, gate.data(), up.data(), gate.data(), n);
        EXPECT_EQ(std::vector<float>(y.begin(), y.end() - 1), gate) << "in place";
      }
    }
  }
}

TEST(Activation, NonsenseIsRefused) {
  ActivationSpec s;
  s.limit = 0.0f;
  EXPECT_THROW(check_activation(s), Error);
  s.limit = NAN;
  EXPECT_THROW(check_activation(s), Error);
  s = of(ActivationKind::kSitu);
  s.situ_b = 0.0f;
  EXPECT_THROW(check_activation(s), Error);
  s.situ_b = 1.0f;
  s.situ_lb = 0.0f;
  EXPECT_THROW(check_activation(s), Error);
  s.situ_lb = 1.0f;
  EXPECT_NO_THROW(check_activation(s));
}

}  // namespace
}  // namespace moebius::activation_test
