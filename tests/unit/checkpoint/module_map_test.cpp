// SPDX-License-Identifier: Apache-2.0
// Tensor names to modules: the four forms of expert tensors, every family's names, what is not
// used, what cannot be placed.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::module_map_test {
namespace {

const std::string kQwen =
    R"("architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 48)";
const std::string kLlama4 =
    R"("architectures": ["Llama4ForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 1, "intermediate_size": 32, "intermediate_size_mlp": 48)";
const std::string kGptOss =
    R"("architectures": ["GptOssForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32)";
const std::string kMixtral =
    R"("architectures": ["MixtralForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32)";
const std::string kGranite =
    R"("architectures": ["GraniteMoeForCausalLM"], "num_local_experts": 4, "num_experts_per_tok": 2, "intermediate_size": 32)";

TinyModel qwen(const std::string& prefix = "model.") {
  TinyModel m(kQwen, prefix);
  m.skeleton();
  m.add(prefix + "layers.0.self_attn.q_norm.weight", {16})
      .add(prefix + "layers.0.self_attn.k_norm.weight", {16});
  m.add(prefix + "layers.0.mlp.gate.weight", {4, 64});
  return m;
}

const TensorRef& ref(const ModuleMap& map, const std::string& name, Role role) {
  const MappedModule* m = find(map, name);
  if (m == nullptr) throw std::runtime_error("no module " + name);
  return m->module.plan.tensors[role];
}

TEST(ModuleMap, PerExpertNames) {
  for (const std::string prefix :
       {"model.", "model.language_model.", "language_model.model.", ""}) {
    TinyModel m = qwen(prefix);
    m.experts(prefix + "layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"});
    const ModuleMap map = m.map();
    const MappedModule* up = find(map, prefix + "layers.0.mlp.experts.3.up_proj");
    ASSERT_NE(up, nullptr) << prefix;
    EXPECT_EQ(up->module.kind, ModuleKind::kExpert);
    EXPECT_EQ(up->module.layer, 0);
    EXPECT_EQ(up->module.expert, 3);
    EXPECT_EQ(up->module.projection, Projection::kUp);
    EXPECT_EQ(up->N, 32u);
    EXPECT_EQ(up->K, 64u);
    EXPECT_EQ(up->block, prefix + "layers.0.mlp");
    EXPECT_EQ(find(map, prefix + "layers.0.mlp.gate")->module.kind, ModuleKind::kRouter);
    EXPECT_EQ(find(map, prefix + "layers.0.self_attn.q_proj")->module.kind, ModuleKind::kLinear);
    EXPECT_EQ(find(map, prefix + "norm")->module.kind, ModuleKind::kNorm);
    EXPECT_EQ(find(map, "lm_head")->module.kind, ModuleKind::kLmHead);
    EXPECT_EQ(find(map, prefix + "embed_tokens")->module.kind, ModuleKind::kEmbedding);
    EXPECT_TRUE(map.unused.empty());
  }
}

TEST(ModuleMap, MixtralNamesAndHybrids) {
  for (const std::vector<std::string>& names :
       {std::vector<std::string>{"w1", "w3", "w2"}, {"gate_proj", "up_proj", "down_proj"}}) {
    for (const std::string block : {"block_sparse_moe", "mlp"}) {
      TinyModel m(kMixtral);
      m.skeleton()
          .add("model.layers.0." + block + ".gate.weight", {4, 64})
          .experts("model.layers.0." + block, 4, names);
      const ModuleMap map = m.map();
      const MappedModule* gate = find(map, "model.layers.0." + block + ".experts.1." + names[0]);
      ASSERT_NE(gate, nullptr);
      EXPECT_EQ(gate->module.projection, Projection::kGate);
      EXPECT_EQ(find(map, "model.layers.0." + block + ".experts.1." + names[2])->module.projection,
                Projection::kDown);
    }
  }
}

TEST(ModuleMap, FusedStandard) {
  TinyModel m = qwen();
  m.add("model.layers.0.mlp.experts.gate_up_proj", {4, 64, 64})
      .add("model.layers.0.mlp.experts.down_proj", {4, 64, 32});
  const ModuleMap map = m.map();
  const TensorRef gate = ref(map, "model.layers.0.mlp.experts.2.gate_proj", Role::kWeight);
  const TensorRef up = ref(map, "model.layers.0.mlp.experts.2.up_proj", Role::kWeight);
  EXPECT_EQ(gate.index, 2);
  EXPECT_FALSE(gate.transposed) << "2I = H: ambiguous by itself, decided by down_proj";
  EXPECT_EQ(gate.row_begin, 0u);
  EXPECT_EQ(gate.row_count, 32u);
  EXPECT_EQ(up.row_begin, 32u);
  EXPECT_EQ(up.row_step, 1u);
  const TensorRef down = ref(map, "model.layers.0.mlp.experts.2.down_proj", Role::kWeight);
  EXPECT_EQ(down.index, 2);
  EXPECT_EQ(down.row_count, 0u);
}

TEST(ModuleMap, FusedTransposedByShapeOrFamily) {
  TinyModel m(kLlama4);
  m.skeleton()
      .add("model.layers.0.feed_forward.router.weight", {4, 64})
      .dense_mlp("model.layers.0.feed_forward.shared_expert", 32);
  m.add("model.layers.0.feed_forward.experts.gate_up_proj", {4, 64, 64})
      .add("model.layers.0.feed_forward.experts.down_proj", {4, 32, 64});
  const ModuleMap map = m.map();
  EXPECT_TRUE(ref(map, "model.layers.0.feed_forward.experts.0.up_proj", Role::kWeight).transposed);
  EXPECT_TRUE(
      ref(map, "model.layers.0.feed_forward.experts.0.down_proj", Role::kWeight).transposed);
  EXPECT_TRUE(
      find(map, "model.layers.0.feed_forward.shared_expert.gate_proj")->module.shared_expert);
  // The same file with [E, H, I]: transformers 5 re-saves families that used to be transposed.
  m.remove("model.layers.0.feed_forward.experts.down_proj")
      .add("model.layers.0.feed_forward.experts.down_proj", {4, 64, 32});
  EXPECT_FALSE(
      ref(m.map(), "model.layers.0.feed_forward.experts.0.up_proj", Role::kWeight).transposed);
}

TEST(ModuleMap, FusedShapesMustFitTheConfig) {
  TinyModel m = qwen();
  m.add("model.layers.0.mlp.experts.gate_up_proj", {4, 48, 64})
      .add("model.layers.0.mlp.experts.down_proj", {4, 64, 32});
  const std::string message = error_of([&] { m.map(); });
  EXPECT_TRUE(contains(message,
                       "model.safetensors: model.layers.0.mlp.experts.gate_up_proj is "
                       "BF16[4,48,64]; expected [4,64,64]"))
      << message;
  TinyModel n = qwen();
  n.add("model.layers.0.mlp.experts.gate_up_proj", {3, 64, 64})
      .add("model.layers.0.mlp.experts.down_proj", {3, 64, 32});
  EXPECT_TRUE(contains(error_of([&] { n.map(); }), "4 experts in dimension 0"));
}

TEST(ModuleMap, GptOssInterleavedDenseAndNative) {
  TinyModel m(kGptOss);
  m.skeleton()
      .add("model.layers.0.self_attn.sinks", {4})
      .add("model.layers.0.mlp.router.weight", {4, 64})
      .add("model.layers.0.mlp.router.bias", {4});
  TinyModel native = m;
  const std::string e = "model.layers.0.mlp.experts.";
  m.add(e + "gate_up_proj", {4, 64, 64})
      .add(e + "gate_up_proj_bias", {4, 64})
      .add(e + "down_proj", {4, 32, 64})
      .add(e + "down_proj_bias", {4, 64});
  const ModuleMap map = m.map();
  const TensorRef up = ref(map, e + "1.up_proj", Role::kWeight);
  EXPECT_TRUE(up.transposed);
  EXPECT_EQ(up.row_begin, 1u);
  EXPECT_EQ(up.row_step, 2u);
  EXPECT_EQ(up.row_count, 32u);
  const TensorRef bias = ref(map, e + "1.up_proj", Role::kBias);
  EXPECT_EQ(bias.index, 1);
  EXPECT_EQ(bias.row_step, 2u);
  EXPECT_FALSE(bias.transposed);
  native.add(e + "gate_up_proj_blocks", {4, 64, 2, 16}, DType::kU8)
      .add(e + "gate_up_proj_scales", {4, 64, 2}, DType::kU8)
      .add(e + "gate_up_proj_bias", {4, 64});
  native.add(e + "down_proj_blocks", {4, 64, 1, 16}, DType::kU8)
      .add(e + "down_proj_scales", {4, 64, 1}, DType::kU8)
      .add(e + "down_proj_bias", {4, 64});
  const ModuleMap n = native.map();
  const TensorRef gate = ref(n, e + "3.gate_proj", Role::kWeightPacked);
  EXPECT_EQ(gate.row_begin, 0u);
  EXPECT_EQ(gate.row_step, 2u);
  EXPECT_EQ(ref(n, e + "3.gate_proj", Role::kWeightScale).index, 3);
  EXPECT_EQ(ref(n, e + "3.down_proj", Role::kWeightPacked).row_count, 0u);
  EXPECT_EQ(find(n, "model.layers.0.self_attn.sinks")->module.kind, ModuleKind::kOther);
}

TEST(ModuleMap, GraniteInputAndOutputLinear) {
  TinyModel m(kGranite);
  m.skeleton().add("model.layers.0.block_sparse_moe.router.layer.weight", {4, 64});
  m.add("model.layers.0.block_sparse_moe.input_linear.weight", {4, 64, 64})
      .add("model.layers.0.block_sparse_moe.output_linear.weight", {4, 64, 32});
  const ModuleMap map = m.map();
  EXPECT_EQ(ref(map, "model.layers.0.block_sparse_moe.experts.3.up_proj", Role::kWeight).row_begin,
            32u);
  EXPECT_EQ(find(map, "model.layers.0.block_sparse_moe.router.layer")->module.kind,
            ModuleKind::kRouter);
}

TEST(ModuleMap, QuantizedFusedTensors) {
  TinyModel m = qwen();
  const std::string e = "model.layers.0.mlp.experts.";
  m.add(e + "w13_weight.weight_packed", {4, 64, 8}, DType::kI32)
      .add(e + "w13_weight.weight_scale", {4, 64, 2})
      .add(e + "w13_weight.weight_shape", {3}, DType::kI64);
  m.add(e + "w2_weight.weight_packed", {4, 64, 4}, DType::kI32)
      .add(e + "w2_weight.weight_scale", {4, 64, 1});
  const ModuleMap map = m.map();
  EXPECT_EQ(ref(map, e + "1.up_proj", Role::kWeightPacked).row_begin, 32u);
  EXPECT_EQ(ref(map, e + "1.up_proj", Role::kWeightScale).row_begin, 32u);
  EXPECT_FALSE(ref(map, e + "1.up_proj", Role::kWeightShape));
  ASSERT_EQ(map.fused_shapes.size(), 1u);
  EXPECT_EQ(map.fused_shapes[0].rows, 64u);
  EXPECT_EQ(map.fused_shapes[0].cols, 64u);
}

TEST(ModuleMap, GateAndUpOfOneExpertTogether) {
  for (const std::string name : {"gate_up_proj", "w13"}) {
    TinyModel m = qwen();
    for (int e = 0; e < 4; ++e) {
      const std::string stem = fmt::format("model.layers.0.mlp.experts.{}.", e);
      m.add(stem + name + ".weight_packed", {64, 8}, DType::kI32)
          .add(stem + name + ".weight_scale", {64, 2})
          .add(stem + name + ".input_global_scale", {1}, DType::kF32);
      m.add(stem + "down_proj.weight", {64, 32});
    }
    const ModuleMap map = m.map();
    const TensorRef up = ref(map, "model.layers.0.mlp.experts.2.up_proj", Role::kWeightPacked);
    EXPECT_EQ(up.row_begin, 32u);
    EXPECT_EQ(up.row_count, 32u);
    EXPECT_EQ(up.index, -1);
    EXPECT_EQ(ref(map, "model.layers.0.mlp.experts.2.up_proj", Role::kInputGlobalScale).row_count,
              0u);
    EXPECT_EQ(find(map, "model.layers.0.mlp.experts.2.gate_proj")->stored_name,
              "model.layers.0.mlp.experts.2." + name);
  }
}

TEST(ModuleMap, DeliberatelyUnused) {
  TinyModel m = qwen();
  m.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"});
  m.add("model.layers.0.self_attn.rotary_emb.inv_freq", {8}, DType::kF32)
      .add("model.layers.0.self_attn.k_scale", {1});
  m.add("model.layers.0.self_attn.q_proj.k_scale", {1})
      .add("visual.blocks.0.attn.qkv.weight", {4, 4})
      .add("mtp.layers.0.fc.weight", {4, 4});
  m.add("model.layers.0.self_attn.q_proj.R1_weight_input.weight", {16, 16}, DType::kF32);
  const ModuleMap map = m.map();
  ASSERT_EQ(map.unused.size(), 5u);
  for (const UnusedTensor& u : map.unused) {
    EXPECT_FALSE(u.reason.empty()) << u.name;
    EXPECT_EQ(u.prediction, u.name.starts_with("mtp.")) << u.name;
  }
  const MappedModule* tower = find(map, "visual.blocks.0.attn.qkv");
  ASSERT_NE(tower, nullptr);
  EXPECT_TRUE(tower->module.tower);
  EXPECT_EQ(tower->part, Part::kTower);
}

TEST(ModuleMap, LayersBehindTheLast) {
  TinyModel m = qwen();
  m.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"})
      .add("model.layers.1.input_layernorm.weight", {64});
  EXPECT_TRUE(contains(error_of([&] { m.map(); }),
                       "belongs to layer 1, but config.json says num_hidden_layers = 1"));
  TinyModel d(
      R"("architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 48)");
  d.skeleton()
      .add("model.layers.0.mlp.gate.weight", {4, 64})
      .add("model.layers.0.mlp.gate.e_score_correction_bias", {4}, DType::kF32);
  d.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"})
      .add("model.layers.1.eh_proj.weight", {64, 128});
  const ModuleMap map = d.map();
  ASSERT_EQ(map.unused.size(), 1u);
  EXPECT_TRUE(contains(map.unused[0].reason, "multi-token prediction"));
  EXPECT_TRUE(map.unused[0].prediction);
  EXPECT_EQ(find(map, "model.layers.0.mlp.gate.e_score_correction_bias")->part,
            Part::kBlockParameter);
  d.remove("model.layers.1.eh_proj.weight").add("model.layers.1.input_layernorm.weight", {64});
  EXPECT_TRUE(contains(error_of([&] { d.map(); }), "no tensors of a prediction head"));
}

TEST(ModuleMap, WhatCannotBePlacedIsAnError) {
  const struct {
    std::string name, why;
  } cases[] = {
      {"model.layers.0.self_attn.extra_proj.weight",
       "no layer of qwen3_moe has a module or parameter 'self_attn.extra_proj'"},
      {"model.layers.0.mlp.experts.0.gate_proj.weight_scale_inv", "native block FP8"},
      {"model.layers.0.mlp.experts.0.gate_proj.qweight", "GPTQ or AWQ"},
      {"model.layers.0.mlp.experts.0.side_proj.weight", "an expert has no projection 'side_proj'"},
      {"model.layers.0.mlp.experts.-1.gate_proj.weight",
       "neither an expert's number nor a fused expert tensor"},
      {"model.layers.0.mlp.shared_expert.gate_proj.weight", "no block of qwen3_moe"},
      {"model.something.weight", "qwen3_moe has no module or parameter 'something'"},
      {"model.layers.0.self_attn.q_proj.R4_input.weight", "online transform"},
      {"weird", "qwen3_moe has no module or parameter 'weird'"},
      {"model.layers.0.self_attn.q_norm.weight_scale", "is not a matrix"},
  };
  for (const auto& c : cases) {
    TinyModel m = qwen();
    m.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"}).add(c.name, {4, 4});
    const std::string message = error_of([&] { m.map(); });
    EXPECT_TRUE(contains(message, c.why) && contains(message, "model.safetensors: " + c.name))
        << c.name << "\n  " << message;
  }
}

TEST(ModuleMap, MissingModulesAreNamed) {
  for (const std::string name :
       {"model.embed_tokens", "model.norm", "model.layers.0.self_attn.o_proj",
        "model.layers.0.self_attn.k_norm", "model.layers.0.input_layernorm"}) {
    TinyModel m = qwen();
    m.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"})
        .remove(name + ".weight");
    const std::string message = error_of([&] { m.map(); });
    EXPECT_TRUE(contains(message, "no tensor belongs to " + name)) << message;
  }
}

TEST(ModuleMap, PartOfAModelWarns) {
  TinyModel m(kQwen);
  m.add("model.layers.0.mlp.gate.weight", {4, 64})
      .experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"});
  const ModuleMap map = m.map();
  ASSERT_EQ(map.warnings.size(), 1u);
  EXPECT_TRUE(contains(map.warnings[0], "a part of a model"));
}

TEST(ModuleMap, UnknownFamilyGuesses) {
  TinyModel m(
      R"("architectures": ["NewMoeForCausalLM"], "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32)");
  m.skeleton()
      .experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"})
      .add("model.layers.0.mlp.gate.weight", {4, 64});
  m.add("model.layers.0.attn.wild_proj.weight", {10, 20})
      .add("model.layers.0.attn.temperature", {3})
      .add("model.layers.0.mixer.conv1d.weight", {8, 1, 4});
  const ModuleMap map = m.map();
  EXPECT_EQ(find(map, "model.layers.0.attn.wild_proj")->module.kind, ModuleKind::kLinear);
  EXPECT_EQ(find(map, "model.layers.0.attn.temperature")->module.kind, ModuleKind::kOther);
  EXPECT_EQ(find(map, "model.layers.0.mixer.conv1d")->module.kind, ModuleKind::kOther);
  EXPECT_EQ(std::count_if(map.modules.begin(), map.modules.end(),
                          [](const MappedModule& one) { return one.module.expert >= 0; }),
            12);
}

TEST(ModuleMap, VectorsHaveTheirSize) {
  TinyModel m = qwen();
  m.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"})
      .remove("model.norm.weight")
      .add("model.norm.weight", {63});
  EXPECT_TRUE(contains(error_of([&] { m.map(); }), "model.norm.weight is BF16[63]; expected [64]"));
}

TEST(ModuleMap, BiasesComeTogether) {
  TinyModel m = qwen();
  m.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"});
  m.add("model.layers.0.self_attn.q_proj.bias", {64})
      .add("model.layers.0.self_attn.v_proj.bias", {32});
  EXPECT_TRUE(contains(error_of([&] { m.map(); }), "model.layers.0.self_attn.k_proj has no bias"));
  m.add("model.layers.0.self_attn.k_proj.bias", {32});
  EXPECT_EQ(error_of([&] { m.map(); }), "");
  TinyModel declared(kQwen + R"(, "attention_bias": true)");
  declared.tensors() =
      qwen().experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"}).tensors();
  EXPECT_TRUE(contains(error_of([&] { declared.map(); }), "attention_bias is true"));
}

TEST(ModuleMap, LayersAreAlike) {
  TinyModel m(
      R"("architectures": ["Glm4MoeForCausalLM"], "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "intermediate_size": 48)",
      "model.", 2);
  m.skeleton();
  for (const std::string layer : {"model.layers.0.", "model.layers.1."})
    m.add(layer + "mlp.gate.weight", {4, 64})
        .experts(layer + "mlp", 4, {"gate_proj", "up_proj", "down_proj"});
  EXPECT_EQ(error_of([&] { m.map(); }), "");
  m.add("model.layers.0.self_attn.q_norm.weight", {16});
  EXPECT_TRUE(
      contains(error_of([&] { m.map(); }),
               "no tensor belongs to model.layers.1.self_attn.q_norm, but layer 0 has one"));
}

TEST(ModuleMap, OnePrefixForAllLayers) {
  TinyModel m = qwen();
  m.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"})
      .remove("model.layers.0.self_attn.o_proj.weight");
  m.add("layers.0.self_attn.o_proj.weight", {64, 64});
  EXPECT_TRUE(contains(error_of([&] { m.map(); }), "name their layers differently"));
}

TEST(ModuleMap, AMatrixOfAWrongRankStaysAMatrix) {
  TinyModel m = qwen();
  m.experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"})
      .remove("model.layers.0.self_attn.o_proj.weight");
  m.add("model.layers.0.self_attn.o_proj.weight", {4096});
  EXPECT_EQ(find(m.map(), "model.layers.0.self_attn.o_proj")->module.kind, ModuleKind::kLinear);
}

TEST(TensorName, IndicesAreStrict) {
  EXPECT_EQ(parse_index("0"), 0);
  EXPECT_EQ(parse_index("127"), 127);
  for (const char* bad : {"", "-1", "01", "1a", "9999999", " 1", "+1"})
    EXPECT_FALSE(parse_index(bad)) << bad;
}

}  // namespace
}  // namespace moebius::test::module_map_test
