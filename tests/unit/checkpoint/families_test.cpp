// SPDX-License-Identifier: Apache-2.0
// Families whose blocks alone are known, and families that are not known at all: everything is
// listed, nothing is computed on a guess.
#include <gtest/gtest.h>

#include "checkpoint/summary.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::families_test {
namespace {

std::string named(const std::string& architecture, const std::string& more) {
  return R"("architectures": [")" + architecture +
         R"("], "model_type": "x", "num_experts_per_tok": 2, "moe_intermediate_size": 32, )" + more;
}

Checkpoint opened(const TinyModel& m) {
  const TempDir dir;
  return Checkpoint::open(m.write(dir), Links::kInside);
}

TEST(Families, KeysAndNamesAreUnique) {
  std::vector<std::string_view> seen;
  for (const Family& f : families()) {
    EXPECT_EQ(family_by_key(f.key), &f) << f.key;
    for_each_word(f.architectures, [&](std::string_view word, bool) {
      EXPECT_EQ(find_family(word, ""), &f) << word;
    });
    for_each_word(f.model_types, [&](std::string_view word, bool) {
      EXPECT_EQ(find_family("", word), &f) << word;
    });
  }
}

TEST(Families, AnOpenFamilyListsWhatItDoesNotKnow) {
  TinyModel m(named("AXK2ForCausalLM", R"("n_routed_experts": 4, "n_shared_experts": 1)"));
  m.skeleton()
      .add("model.layers.0.self_attn.indexer.k_norm.bias", {16})
      .add("model.layers.0.self_attn.indexer.k_norm.weight", {16})
      .add("model.layers.0.self_attn.indexer.wk.weight", {16, 64})
      .add("model.layers.0.mlp.gate.weight", {4, 64})
      .add("model.layers.0.mlp.gate.e_score_correction_bias", {4}, DType::kF32)
      .experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"})
      .add("model.layers.0.mlp.shared_experts.gate_proj.weight", {32, 64})
      .add("model.layers.0.mlp.shared_experts.up_proj.weight", {32, 64})
      .add("model.layers.0.mlp.shared_experts.down_proj.weight", {64, 32});
  const Checkpoint c = opened(m);
  EXPECT_TRUE(c.unused().empty());
  ASSERT_NE(c.find_module("model.layers.0.self_attn.indexer.wk"), nullptr);
  ASSERT_EQ(c.moe_blocks().size(), 1u);
  const MoeBlock& b = c.moe_blocks()[0];
  EXPECT_EQ(b.routing_reason + b.experts_reason, "");
  EXPECT_EQ(b.spec.router.scoring, Scoring::kSigmoid);
  EXPECT_EQ(b.spec.shared, SharedKind::kPlain);
  EXPECT_EQ(b.spec.shared_intermediate, 32u);
}

TEST(Families, ConvolutionsAndLoneBiasesAreNoMatrices) {
  TinyModel m(named("JambaForCausalLM", R"("num_experts": 4)"));
  m.skeleton()
      .add("model.layers.0.mamba.conv1d.bias", {8})  // read before the weight that shows what it is
      .add("model.layers.0.mamba.conv1d.weight", {8, 1, 4})
      .add("model.layers.0.mamba.scan.bias", {8})
      .add("model.layers.0.feed_forward.router.weight", {4, 64})
      .experts("model.layers.0.feed_forward", 4, {"gate_proj", "up_proj", "down_proj"});
  const Checkpoint c = opened(m);
  EXPECT_EQ(c.find_module("model.layers.0.mamba.conv1d")->kind, ModuleKind::kOther);
  EXPECT_EQ(c.find_module("model.layers.0.mamba.scan")->kind, ModuleKind::kOther);
  EXPECT_EQ(module_params(*c.find_module("model.layers.0.mamba.conv1d")), 8u * 4 + 8);
  EXPECT_FALSE(c.moe_blocks()[0].spec.router.renormalize);
}

// experts.expert_0.fc1, a stack of matrices under an MLP's names, a shared expert beside the block.
TEST(Families, ExpertsUnderOtherNames) {
  TinyModel nllb(R"("architectures": ["NllbMoeForConditionalGeneration"], "num_experts": 2)",
                 "model.decoder.");
  nllb.skeleton().add("model.decoder.layers.0.ffn.router.classifier.weight", {2, 64});
  for (const char* e : {"0", "1"})
    nllb.add(fmt::format("model.decoder.layers.0.ffn.experts.expert_{}.fc1.weight", e), {48, 64})
        .add(fmt::format("model.decoder.layers.0.ffn.experts.expert_{}.fc2.weight", e), {64, 48});
  const Checkpoint a = opened(nllb);
  ASSERT_EQ(a.moe_blocks().size(), 1u);
  EXPECT_EQ(a.moe_blocks()[0].experts.size(), 2u);
  EXPECT_EQ(a.moe_blocks()[0].experts[1][0], nullptr);  // not gated
  EXPECT_EQ(a.moe_blocks()[0].spec.router.top_k, 2u);

  TinyModel step(named("Step3p7ForConditionalGeneration", R"("n_routed_experts": 4)"));
  step.skeleton()
      .add("model.layers.0.moe.gate.weight", {4, 64})
      .add("model.layers.0.moe.router_bias", {4}, DType::kF32)
      .add("model.layers.0.moe.gate_proj.weight", {4, 32, 64})
      .add("model.layers.0.moe.up_proj.weight", {4, 32, 64})
      .add("model.layers.0.moe.down_proj.weight", {4, 64, 32})
      .add("model.layers.0.share_expert.gate_proj.weight", {48, 64})
      .add("model.layers.0.share_expert.up_proj.weight", {48, 64})
      .add("model.layers.0.share_expert.down_proj.weight", {64, 48});
  const Checkpoint b = opened(step);
  ASSERT_EQ(b.moe_blocks().size(), 1u);
  EXPECT_EQ(b.moe_blocks()[0].experts[3][1]->plan.N, 32u);
  EXPECT_EQ(b.moe_blocks()[0].shared[2]->plan.K, 48u);
  EXPECT_EQ(b.moe_blocks()[0].correction_bias.size(), 4u);
  EXPECT_EQ(b.moe_blocks()[0].routing_reason, "");
}

TEST(Families, ExpertsOfAnUnknownFamilyAreListedAndNotRun) {
  TinyModel m(named("NewMoeForCausalLM", R"("num_experts": 4, "hidden_act": "silu")"));
  m.skeleton()
      .add("model.layers.0.mlp.gate.weight", {4, 64})
      .experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"});
  const Checkpoint c = opened(m);
  ASSERT_EQ(c.moe_blocks().size(), 1u);
  EXPECT_EQ(c.moe_blocks()[0].experts.size(), 4u);
  EXPECT_TRUE(contains(c.moe_blocks()[0].experts_reason, "not in the registry"));
  EXPECT_TRUE(contains(c.moe_blocks()[0].routing_reason, "not in the registry"));
}

TEST(Families, AModelWithExpertsNeverHasNone) {
  TinyModel m(named("DogeForCausalLM", R"("num_experts": 16, "is_moe": true)"));
  m.skeleton()
      .dense_mlp("model.layers.0.mlp")
      .add("model.layers.0.mlp.down_embed.weight", {16, 64});
  EXPECT_EQ(opened(m).config().experts, 16);
  TinyModel dense(named("DogeForCausalLM", R"("num_experts": 16, "is_moe": false)"));
  dense.skeleton().dense_mlp("model.layers.0.mlp");
  EXPECT_EQ(opened(dense).config().experts, 0);
}

}  // namespace
}  // namespace moebius::test::families_test
