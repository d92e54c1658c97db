// SPDX-License-Identifier: Apache-2.0
// Rows of a calibration (quantize/calibration.h): behind layers that were made they are those of the
// model that has these layers.
#include "quantize/calibration.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/random.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/fused_halves.h"
#include "runtime/thread_pool.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::calibration_test {
namespace {

std::string golden(const std::string& name) {
  return (test::test_data_dir() / "golden" / name).string();
}

TokenWindows some_windows(size_t vocab) {
  SplitMix64 random(5);
  TokenWindows windows(3, std::vector<int32_t>(24));
  for (std::vector<int32_t>& w : windows)
    for (int32_t& t : w) t = static_cast<int32_t>(random.below(vocab));
  return windows;
}

// What the first projections of the second layer read.
std::vector<float> rows_of(const Checkpoint& model, const std::string& name,
                           CalibrationSettings settings) {
  ThreadPool pool(2);
  Calibration calibration(model, some_windows(static_cast<size_t>(model.config().vocab)), pool,
                          {name}, std::move(settings));
  calibration.reach(1);
  return calibration.inputs(*model.find_module(name), SIZE_MAX);
}

// Experts of their own and fused ones, with biases too, gate and up in one matrix, latent attention, shared experts; codes of 4 and 8 bits.
TEST(Calibration, RowsBehindMadeLayersAreThoseOfTheMadeModel) {
  for (const auto& [source, made, module] :
       {std::tuple("olmoe-dense", "olmoe-fp8-static", "self_attn.q_proj"),
        std::tuple("qwen3moe-dense", "qwen3moe-w4a8-g32-sharded", "self_attn.q_proj"),
        std::tuple("axk1-dense", "axk1-w4a16-g32", "self_attn.q_a_proj"),
        std::tuple("glm4moe-dense", "glm4moe-nvfp4", "self_attn.q_proj"),
        std::tuple("gptoss-dense", "gptoss-w8a8", "self_attn.q_proj"),
        std::tuple("granitemoeshared-dense", "granitemoeshared-w8a8", "self_attn.q_proj"),
        std::tuple("deepseekv2-dense", "deepseekv2-w8a8", "self_attn.kv_a_proj_with_mqa")}) {
    SCOPED_TRACE(made);
    const Checkpoint plain = Checkpoint::open(golden(source)),
                     other = Checkpoint::open(golden(made));
    std::vector<StoredElsewhere> modules;
    std::vector<std::string> paths;
    for (const Module& m : other.modules())
      if (!m.decision.scheme.is_dense() && m.layer == 0) {
        const std::string whole = whole_of(m.plan.tensors);
        modules.push_back({whole.empty() ? m.name : whole, m.decision.scheme});
      }
    for (const SafetensorsFile& f : other.store().files()) paths.push_back(f.path());
    ASSERT_GT(modules.size(), 3u);
    const std::string name = std::string("model.layers.1.") + module;
    CalibrationSettings settings;
    size_t asked = 0;
    settings.made = [&](Range layers) {
      EXPECT_EQ(layers.begin, 0u);
      ++asked;
      return plain.with_matrices(modules, paths);
    };
    const std::vector<float> rows = rows_of(plain, name, settings);
    EXPECT_EQ(asked, 1u);
    ASSERT_FALSE(rows.empty());
    EXPECT_TRUE(rows == rows_of(other, name, {}));
    EXPECT_FALSE(rows == rows_of(plain, name, {}));
  }
}

// E[x x^T] of rows [n,K].
std::vector<double> mean_products(const std::vector<float>& rows, size_t K) {
  const size_t n = rows.size() / K;
  std::vector<double> h(K * K);
  for (size_t r = 0; r < n; ++r)
    for (size_t i = 0; i < K; ++i)
      for (size_t j = 0; j < K; ++j)
        h[i * K + j] += double{rows[r * K + i]} * double{rows[r * K + j]} / static_cast<double>(n);
  return h;
}

// With n rows and K inputs an expert's moments are a H_expert + (1 - a) H_layer, a = n / (n + K). An
// expert without rows has the layer's; what its down projection reads is made of rows that are sent.
TEST(Calibration, MomentsOfExpertsWithFewRowsAreMixed) {
  const Checkpoint model = Checkpoint::open(golden("qwen3moe-dense"));
  std::set<std::string, std::less<>> names;
  for (const Module& m : model.modules())
    if (m.layer == 0 && m.expert >= 0) names.insert(m.name);
  size_t without = 0, with = 0;
  for (const size_t tokens : {1u, 12u}) {
    const TokenWindows windows = {some_windows(32).front()};
    const TokenWindows some = {{windows[0].begin(), windows[0].begin() + static_cast<int>(tokens)}};
    ThreadPool pool(2);
    CalibrationSettings all;
    all.all_experts = true;
    Calibration routed(model, some, pool, names, {}), every(model, some, pool, names, all);
    routed.reach(0), every.reach(0);
    for (const char* part : {"gate_proj", "down_proj"}) {
      const bool down = part[0] == 'd';
      const auto module = [&](size_t e) {
        return model.find_module(fmt::format("model.layers.0.mlp.experts.{}.{}", e, part));
      };
      std::vector<float> layer;  // rows of all experts; for gate all rows of the layer
      for (size_t e = 0; e < 4 && down; ++e)
        for (const float v : routed.inputs(*module(e), SIZE_MAX)) layer.push_back(v);
      if (!down) layer = every.inputs(*module(0), SIZE_MAX);
      const size_t K = module(0)->plan.K;
      const std::vector<double> of_layer = mean_products(layer, K);
      for (size_t e = 0; e < 4; ++e) {
        SCOPED_TRACE(fmt::format("{} {} of {} tokens", part, e, tokens));
        const std::vector<float> own = routed.inputs(*module(e), SIZE_MAX);
        const Moments m = routed.moments(*module(e), true);
        const size_t n = own.size() / K;
        EXPECT_EQ(m.rows, n);
        ++(n == 0 ? without : with);
        const double a = n == 0 ? 0 : static_cast<double>(n) / static_cast<double>(n + K);
        std::vector<double> expected =
            mean_products(n > 0 ? own : every.inputs(*module(e), SIZE_MAX), K);
        if (n > 0 || !down)
          for (size_t i = 0; i < K * K; ++i) expected[i] = a * expected[i] + (1 - a) * of_layer[i];
        ASSERT_EQ(m.hessian.size(), K * K);
        double most = 0;
        for (const double v : expected) most = std::max(most, std::abs(v));
        for (size_t i = 0; i < K * K; ++i)
          ASSERT_NEAR(double{m.hessian[i]}, expected[i], 1e-6 * most) << i;
        for (size_t i = 0; i < K; ++i) ASSERT_EQ(m.diagonal[i], m.hessian[i * K + i]);
      }
    }
  }
  EXPECT_EQ(without, 4u);  // two of four experts see the one token
  EXPECT_GE(with, 8u);
}

TEST(Calibration, AModuleThatIsNotThereIsNamed) {
  const Checkpoint plain = Checkpoint::open(golden("qwen3moe-dense"));
  const std::vector<StoredElsewhere> modules = {{"model.layers.0.nothing", Scheme()}};
  try {
    (void)plain.with_matrices(modules, {});
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("model.layers.0.nothing"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace moebius::calibration_test
