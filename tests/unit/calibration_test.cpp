// SPDX-License-Identifier: Apache-2.0
// Rows of a calibration (quantize/calibration.h): behind layers that were made they are those of the
// model that has these layers.
#include "quantize/calibration.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "checkpoint/checkpoint.h"
#include "runtime/thread_pool.h"
#include "unit/checkpoint_util.h"

namespace moebius {
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

// Experts of their own and fused ones, latent attention, shared experts; codes of 4 and 8 bits.
TEST(Calibration, RowsBehindMadeLayersAreThoseOfTheMadeModel) {
  for (const auto& [source, made, module] :
       {std::tuple("olmoe-dense", "olmoe-fp8-static", "self_attn.q_proj"),
        std::tuple("qwen3moe-dense", "qwen3moe-w4a8-g32-sharded", "self_attn.q_proj"),
        std::tuple("axk1-dense", "axk1-w4a16-g32", "self_attn.q_a_proj"),
        std::tuple("glm4moe-dense", "glm4moe-nvfp4", "self_attn.q_proj"),
        std::tuple("deepseekv2-dense", "deepseekv2-w8a8", "self_attn.kv_a_proj_with_mqa")}) {
    SCOPED_TRACE(made);
    const Checkpoint plain = Checkpoint::open(golden(source)),
                     other = Checkpoint::open(golden(made));
    std::vector<StoredElsewhere> modules;
    std::vector<std::string> paths;
    for (const Module& m : other.modules())
      if (!m.decision.scheme.is_dense() && m.layer == 0)
        modules.push_back({m.name, m.decision.scheme});
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
}  // namespace moebius
