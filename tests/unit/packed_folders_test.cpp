// SPDX-License-Identifier: Apache-2.0
// Folders of GPTQ, AWQ and AutoRound as a whole: which modules are quantized and by which rule, what
// is said about files that contradict their configuration, and one model in several forms.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "unit/checkpoint_util.h"

namespace moebius::test {
namespace {

namespace fs = std::filesystem;

Checkpoint golden(const std::string& name) {
  return Checkpoint::open((test_data_dir() / "golden" / name).string());
}

std::string scheme_of(const Checkpoint& c, const std::string& module) {
  const Module* m = c.find_module(module);
  return m == nullptr ? "no such module" : describe(m->plan.scheme);
}

std::string all_warnings(const Checkpoint& c) {
  std::string text;
  for (const std::string& w : c.warnings()) text += w + "\n";
  return text;
}

// A copy of a golden folder whose configuration is changed by text.
std::string changed(const TempDir& dir, const std::string& name, const std::string& from,
                    const std::string& to) {
  fs::copy(test_data_dir() / "golden" / name, dir.path());
  std::string text = read_file(dir / "config.json");
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  if (at != std::string::npos) text.replace(at, from.size(), to);
  std::ofstream(dir / "config.json") << text;
  return dir.path().string();
}

TEST(PackedFolders, QuantizedRouterAndOutputProjection) {
  const Checkpoint c = golden("qwen3moe-gptq-w4-g32");
  EXPECT_EQ(c.quant().method(), "gptq");
  EXPECT_EQ(scheme_of(c, "model.layers.0.mlp.gate"), "w4a16 int4 g32 sym act-order, gptq");
  EXPECT_EQ(scheme_of(c, "lm_head"), "w4a16 int4 g32 sym act-order, gptq");
  EXPECT_TRUE(c.find_module("lm_head")->plan.act_order);
  EXPECT_EQ(scheme_of(c, "model.embed_tokens"), "dense");
  EXPECT_EQ(all_warnings(c), "");
  c.require_supported();
}

TEST(PackedFolders, ConfigurationInAFileOfItsOwn) {
  const Checkpoint c = golden("mixtral-gptq-w4-asym-g32");
  EXPECT_EQ(c.quant().method(), "gptq");
  EXPECT_EQ(scheme_of(c, "model.layers.1.block_sparse_moe.experts.3.w2"),
            "w4a16 int4 g32 asym, gptq");
  EXPECT_TRUE(contains(all_warnings(c), "qzeros hold 15")) << all_warnings(c);
}

TEST(PackedFolders, RulesGiveWidths) {
  const Checkpoint c = golden("qwen3moe-gptq-v2-dynamic");
  EXPECT_EQ(scheme_of(c, "model.layers.0.self_attn.q_proj"),
            "w8a16 int8 per channel asym, gptq_v2");
  EXPECT_EQ(scheme_of(c, "model.layers.0.self_attn.v_proj"), "dense");
  EXPECT_EQ(c.find_module("model.layers.0.self_attn.v_proj")->decision.rule,
            "dynamic '-:.*v_proj$'");
  EXPECT_EQ(scheme_of(c, "model.layers.1.mlp.experts.2.down_proj"), "w2a16 int2 g16 asym, gptq_v2");
  const Module* short_group = c.find_module("model.layers.1.mlp.experts.2.up_proj");
  EXPECT_EQ(describe(short_group->plan.scheme), "w4a16 int4 g48 sym, gptq_v2");
  EXPECT_EQ(short_group->plan.groups, 2u);
  EXPECT_EQ(all_warnings(c), "");
  const Checkpoint round = golden("glm4moe-autoround-mixed");
  EXPECT_EQ(scheme_of(round, "lm_head"), "w8a16 int8 g16 asym, gptq_v2");
  EXPECT_EQ(scheme_of(round, "model.layers.1.self_attn.o_proj"), "dense");
  EXPECT_EQ(scheme_of(round, "model.layers.1.mlp.experts.0.up_proj"),
            "w2a16 int2 g32 asym, gptq_v2");
  EXPECT_EQ(all_warnings(round), "");
}

TEST(PackedFolders, RealAutoRound) {
  const Checkpoint c = golden("qwen3moe-autoround-real-gptq");
  EXPECT_EQ(c.quant().method(), "auto-round");
  EXPECT_EQ(scheme_of(c, "model.layers.0.mlp.experts.0.up_proj"), "w4a16 int4 g32 sym, gptq");
  EXPECT_EQ(scheme_of(c, "model.layers.0.mlp.gate"), "dense");
  EXPECT_EQ(all_warnings(c), "");
  LoadBuffer buffer;
  bool negative = false;  // its symmetric scales have both signs
  for (const Module& m : c.modules()) {
    if (!has_matrix(m) || m.plan.scheme.is_dense()) continue;
    const QuantMatrix w = reader_for(m.plan.scheme.format).load(m.plan, c.store(), buffer);
    for (size_t i = 0; i < w.N * w.scale_stride; ++i) negative |= (w.scales[2 * i + 1] & 0x80) != 0;
  }
  EXPECT_TRUE(negative);
}

TEST(PackedFolders, TensorsCountAndListsThatLieAreSaid) {
  const TempDir zeros, head, list, order;
  const Checkpoint two =
      Checkpoint::open(changed(zeros, "qwen3moe-gptq-w4-g32", R"("checkpoint_format": "gptq")",
                               R"("checkpoint_format": "gptq_v2")"));
  EXPECT_TRUE(
      contains(all_warnings(two), "says format gptq_v2, but qzeros hold 7, as gptq has them"))
      << all_warnings(two);
  const Checkpoint stored = Checkpoint::open(
      changed(head, "qwen3moe-gptq-w4-g32", R"("lm_head": true)", R"("lm_head": false)"));
  EXPECT_TRUE(contains(all_warnings(stored),
                       "lm_head: stored quantized although lm_head false excludes it"))
      << all_warnings(stored);
  EXPECT_EQ(scheme_of(stored, "lm_head"), "w4a16 int4 g32 sym act-order, gptq");
  const Checkpoint lies =
      Checkpoint::open(changed(list, "deepseekv3-awq-g16", R"("kv_b")", R"("kv_a")"));
  EXPECT_TRUE(contains(all_warnings(lies), "modules_to_not_convert 'kv_a' excludes it"))
      << all_warnings(lies);
  EXPECT_TRUE(contains(all_warnings(lies), "stored as a plain weight although"))
      << all_warnings(lies);
  const Checkpoint unsaid = Checkpoint::open(
      changed(order, "qwen3moe-gptq-w4-g32", R"("desc_act": true)", R"("desc_act": false)"));
  EXPECT_TRUE(contains(all_warnings(unsaid), "does not say desc_act; it is used"))
      << all_warnings(unsaid);
}

}  // namespace
}  // namespace moebius::test
