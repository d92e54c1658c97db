// SPDX-License-Identifier: Apache-2.0
// Opening folders: schemes with the tensors as ground truth, experts checked, MoE blocks resolved,
// tied heads, broken configs.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cstring>

#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::checkpoint_test {
namespace {

const std::string kW4 =
    R"({"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32})";

// quantization_config with one int4 group; `ignore` is a JSON array.
std::string quant(const std::string& ignore, const std::string& targets = R"(["Linear"])") {
  return fmt::format(
      R"("quantization_config": {{"quant_method": "compressed-tensors", "format": "pack-quantized", "quantization_status": "compressed", "version": "0.18.0",
 "config_groups": {{"group_0": {{"targets": {}, "weights": {}}}}}, "ignore": {}}})",
      targets, kW4, ignore);
}

std::string family(const std::string& architecture, const std::string& more = "") {
  return "\"architectures\": [\"" + architecture +
         "\"], \"num_experts\": 4, \"num_experts_per_tok\": 2, \"moe_intermediate_size\": 32, "
         "\"intermediate_size\": 48, \"norm_topk_prob\": true" +
         (more.empty() ? "" : ", " + more);
}

TinyModel quantized_qwen(const std::string& config) {
  TinyModel m(config);
  m.skeleton();
  m.add("model.layers.0.self_attn.q_norm.weight", {16})
      .add("model.layers.0.self_attn.k_norm.weight", {16});
  m.add("model.layers.0.mlp.gate.weight", {4, 64});
  for (int e = 0; e < 4; ++e) {
    const std::string stem = fmt::format("model.layers.0.mlp.experts.{}.", e);
    m.packed(stem + "gate_proj", 32, 64)
        .packed(stem + "up_proj", 32, 64)
        .packed(stem + "down_proj", 64, 32);
  }
  return m;
}
const std::string kIgnore = R"(["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"])";
TinyModel good() { return quantized_qwen(family("Qwen3MoeForCausalLM", quant(kIgnore))); }

std::string open_error(const TinyModel& m) {
  const TempDir dir;
  const std::string folder = m.write(dir);
  return error_of([&] { Checkpoint::open(folder); });
}

std::vector<uint8_t> f32_bytes(const std::vector<float>& values) {
  std::vector<uint8_t> out(values.size() * 4);
  std::memcpy(out.data(), values.data(), out.size());
  return out;
}

TEST(Checkpoint, OpensAndAccountsForEverything) {
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(good().write(dir));
  EXPECT_TRUE(c.warnings().empty()) << c.warnings().front();
  EXPECT_TRUE(c.unused().empty());
  ASSERT_EQ(c.moe_blocks().size(), 1u);
  const MoeBlock& b = c.moe_blocks()[0];
  EXPECT_EQ(b.name, "model.layers.0.mlp");
  ASSERT_EQ(b.experts.size(), 4u);
  for (size_t e = 0; e < 4; ++e)
    for (size_t p = 0; p < 3; ++p) {
      ASSERT_NE(b.experts[e][p], nullptr);
      EXPECT_EQ(b.experts[e][p]->expert, static_cast<int>(e));
      EXPECT_EQ(b.experts[e][p]->decision.scheme.format, Format::kPackQuantized);
      EXPECT_EQ(b.experts[e][p]->plan.N, p == 2 ? 64u : 32u);
    }
  EXPECT_EQ(b.router, c.find_module("model.layers.0.mlp.gate"));
  EXPECT_TRUE(b.router->decision.scheme.is_dense());
  EXPECT_EQ(c.find_moe("model.layers.0.mlp"), &b);
  EXPECT_EQ(c.find_moe("model.layers.0.mlp.experts"), &b);
  EXPECT_EQ(c.find_moe("model.layers.0"), nullptr);
  EXPECT_EQ(c.output_module(), c.find_module("lm_head"));
  EXPECT_EQ(b.experts[1][0]->bytes, 32u * 8 * 4 + 32 * 2 * 2 + 16);
  uint64_t bytes = 0;
  for (const Module& m : c.modules()) bytes += m.bytes;
  EXPECT_EQ(bytes, c.store().total_bytes()) << "every byte belongs to a module";
  c.require_supported();
}

TEST(Checkpoint, PlainWeightWinsOverTheRule) {
  TinyModel m = quantized_qwen(family("Qwen3MoeForCausalLM", quant(R"(["lm_head"])")));
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  EXPECT_TRUE(c.find_module("model.layers.0.self_attn.q_proj")->decision.scheme.is_dense());
  ASSERT_EQ(c.warnings().size(), 4u) << "q, k, v, o; a router that stays dense is normal";
  EXPECT_TRUE(contains(c.warnings()[0], "stored as a plain weight although group_0"));
}

TEST(Checkpoint, QuantizedTensorsFindTheirSchemeUnderAnotherSpelling) {
  // The targets name the module as another exporter would.
  TinyModel m = quantized_qwen(family(
      "Qwen3MoeForCausalLM", quant("[]", R"(["re:model.language_model.layers.*experts.*"])")));
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  EXPECT_FALSE(c.find_module("model.layers.0.mlp.experts.0.up_proj")->decision.scheme.is_dense());
  ASSERT_FALSE(c.warnings().empty());
  EXPECT_TRUE(contains(c.warnings()[0], "stored quantized although the rules say dense"))
      << c.warnings()[0];
}

TEST(Checkpoint, QuantizedTensorsWithoutASchemeAreAnError) {
  TinyModel m = quantized_qwen(family("Qwen3MoeForCausalLM", quant(R"(["re:.*experts.3.*"])")));
  const std::string message = open_error(m);
  EXPECT_TRUE(contains(message, "model.safetensors: model.layers.0.mlp.experts.3.") &&
              contains(message, "no rule of quantization_config"))
      << message;
  TinyModel plain = quantized_qwen(family("Qwen3MoeForCausalLM"));
  EXPECT_TRUE(contains(open_error(plain), "no rule of quantization_config"));
}

TEST(Checkpoint, ExpertsMustAgree) {
  // Expert 2's up projection stays dense: another scheme than its siblings.
  TinyModel m = good();
  const std::string stem = "model.layers.0.mlp.experts.2.up_proj";
  m.remove(stem + ".weight_packed")
      .remove(stem + ".weight_scale")
      .remove(stem + ".weight_shape")
      .add(stem + ".weight", {32, 64});
  const std::string message = open_error(m);
  EXPECT_TRUE(
      contains(message, "experts of one layer disagree: model.layers.0.mlp.experts.0.up_proj") &&
      contains(message, stem))
      << message;
}

TEST(Checkpoint, ProjectionsMayDiffer) {
  TinyModel m = good();
  for (int e = 0; e < 4; ++e) {
    const std::string stem = fmt::format("model.layers.0.mlp.experts.{}.down_proj", e);
    m.remove(stem + ".weight_packed")
        .remove(stem + ".weight_scale")
        .remove(stem + ".weight_shape")
        .add(stem + ".weight", {64, 32});
  }
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  EXPECT_TRUE(c.moe_blocks()[0].experts[0][2]->decision.scheme.is_dense());
  EXPECT_FALSE(c.moe_blocks()[0].experts[0][1]->decision.scheme.is_dense());
  ASSERT_EQ(c.warnings().size(), 1u) << "one line for all experts";
  EXPECT_TRUE(contains(c.warnings()[0], "model.layers.*.mlp.experts.*.down_proj (4 modules)"));
}

TEST(Checkpoint, MissingAndSurplusExperts) {
  TinyModel m = good();
  for (const char* suffix : {".weight_packed", ".weight_scale", ".weight_shape"})
    m.remove(std::string("model.layers.0.mlp.experts.1.down_proj") + suffix);
  EXPECT_TRUE(contains(open_error(m),
                       "model.layers.0.mlp.experts.1 has no down_proj; expected gate, up and down "
                       "of all 4 experts"));
  TinyModel more = good();
  more.packed("model.layers.0.mlp.experts.4.gate_proj", 32, 64);
  EXPECT_TRUE(contains(open_error(more), "is expert 4; config.json says 4 experts (0 to 3)"));
  TinyModel none = good();
  std::erase_if(none.tensors(),
                [](const TinyTensor& t) { return t.name.find("experts") != std::string::npos; });
  EXPECT_TRUE(contains(open_error(none),
                       "layer 0 has no expert tensors; config.json says it has 4 experts"));
  TinyModel no_router = good();
  no_router.remove("model.layers.0.mlp.gate.weight");
  EXPECT_TRUE(
      contains(open_error(no_router), "has no router; expected model.layers.0.mlp.gate.weight"));
}

TEST(Checkpoint, ShapesMustFitTheArchitecture) {
  TinyModel m = good();
  m.remove("model.layers.0.self_attn.q_proj.weight")
      .add("model.layers.0.self_attn.q_proj.weight", {48, 64});
  const std::string message = open_error(m);
  EXPECT_TRUE(contains(message, "model.layers.0.self_attn.q_proj.weight is BF16[48,64]") &&
              contains(message, "expected 64 x 64"))
      << message;
}

TEST(Checkpoint, LeftoverTensorsOfAModuleAreAnError) {
  TinyModel m = good();
  m.add("model.layers.0.mlp.experts.0.up_proj.weight_global_scale", {1}, DType::kF32);
  const std::string message = open_error(m);
  EXPECT_TRUE(contains(message, "model.layers.0.mlp.experts.0.up_proj.weight_global_scale"))
      << message;
}

TEST(Checkpoint, TiedHeads) {
  const std::string tied =
      family("Qwen3MoeForCausalLM", quant(kIgnore) + ", \"tie_word_embeddings\": true");
  TinyModel without = quantized_qwen(tied);
  without.remove("lm_head.weight");
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(without.write(dir));
  EXPECT_EQ(c.output_module(), c.find_module("model.embed_tokens"));
  const TempDir other;
  const Checkpoint both = Checkpoint::open(quantized_qwen(tied).write(other));
  ASSERT_EQ(both.unused().size(), 1u);
  EXPECT_EQ(both.unused()[0].name, "lm_head.weight");
  EXPECT_EQ(both.output_module(), both.find_module("model.embed_tokens"));
  // One with values of its own is used, as transformers does.
  const TempDir third;
  TinyModel own = quantized_qwen(tied);
  for (TinyTensor& t : own.tensors())
    if (t.name == "lm_head.weight") t.bytes.assign(32 * 64 * 2, 7);
  const Checkpoint apart = Checkpoint::open(own.write(third));
  EXPECT_TRUE(apart.unused().empty());
  ASSERT_NE(apart.find_module("lm_head"), nullptr);
  EXPECT_EQ(apart.output_module(), apart.find_module("lm_head"));
  EXPECT_FALSE(apart.config().tie_embeddings);
  ASSERT_FALSE(apart.warnings().empty());
  EXPECT_TRUE(contains(apart.warnings().back(), "a lm_head of its own is stored; it is used"));
  TinyModel untied = quantized_qwen(
      family("Qwen3MoeForCausalLM", quant(kIgnore) + ", \"tie_word_embeddings\": false"));
  untied.remove("lm_head.weight");
  EXPECT_TRUE(contains(open_error(untied), "no tensor belongs to lm_head"));
}

TEST(Checkpoint, CorrectionBiasIsReadAndDecides) {
  const std::string mla =
      R"("kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_shared_experts": 1)";
  TinyModel m(family("DeepseekV2ForCausalLM", mla));
  const std::string l = "model.layers.0.";
  m.add("model.embed_tokens.weight", {32, 64})
      .add("model.norm.weight", {64})
      .add("lm_head.weight", {32, 64});
  m.add(l + "input_layernorm.weight", {64}).add(l + "post_attention_layernorm.weight", {64});
  m.add(l + "self_attn.q_proj.weight", {64, 64})
      .add(l + "self_attn.kv_a_proj_with_mqa.weight", {24, 64})
      .add(l + "self_attn.kv_a_layernorm.weight", {16});
  m.add(l + "self_attn.kv_b_proj.weight", {96, 16}).add(l + "self_attn.o_proj.weight", {64, 64});
  m.add(l + "mlp.gate.weight", {4, 64})
      .experts(l + "mlp", 4, {"gate_proj", "up_proj", "down_proj"})
      .dense_mlp(l + "mlp.shared_experts", 32);
  m.add(l + "mlp.gate.e_score_correction_bias", {4}, DType::kF32,
        f32_bytes({0.5f, -1.0f, 2.0f, 0.0f}));
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  const MoeBlock& b = c.moe_blocks()[0];
  EXPECT_EQ(b.correction_bias, (std::vector<float>{0.5f, -1.0f, 2.0f, 0.0f}));
  EXPECT_TRUE(b.spec.router.has_bias);
  EXPECT_EQ(b.spec.router.scoring, Scoring::kSigmoid)
      << "no topk_method: a stored bias means noaux_tc";
  EXPECT_EQ(b.spec.shared, SharedKind::kPlain);
  ASSERT_NE(b.shared[2], nullptr);
  EXPECT_EQ(b.shared[2]->name, l + "mlp.shared_experts.down_proj");
  m.remove(l + "mlp.gate.e_score_correction_bias")
      .add(l + "mlp.gate.e_score_correction_bias", {4}, DType::kF32, f32_bytes({0, 0, 0, NAN}));
  EXPECT_TRUE(
      contains(open_error(m), "e_score_correction_bias[3] is nan; expected a finite number"));
  m.remove(l + "mlp.shared_experts.up_proj.weight");
  EXPECT_FALSE(open_error(m).empty());
}

TEST(Checkpoint, GatedSharedExpert) {
  TinyModel m(family("Qwen2MoeForCausalLM", "\"shared_expert_intermediate_size\": 96"));
  m.skeleton()
      .add("model.layers.0.mlp.gate.weight", {4, 64})
      .experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"});
  m.dense_mlp("model.layers.0.mlp.shared_expert", 96)
      .add("model.layers.0.mlp.shared_expert_gate.weight", {1, 64});
  m.add("model.layers.0.self_attn.q_proj.bias", {64});
  m.add("model.layers.0.self_attn.k_proj.bias", {32})
      .add("model.layers.0.self_attn.v_proj.bias", {32});
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  EXPECT_EQ(c.moe_blocks()[0].shared_gate, c.find_module("model.layers.0.mlp.shared_expert_gate"));
  m.remove("model.layers.0.mlp.shared_expert_gate.weight");
  EXPECT_TRUE(contains(open_error(m), "has no shared_expert_gate"));
}

TEST(Checkpoint, FusedFp8WithAScaleEachForGateAndUp) {
  const std::string fp8 =
      R"("quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized", "config_groups": {"g": {"targets": ["Linear"],
    "weights": {"num_bits": 8, "type": "float", "strategy": "tensor"}, "input_activations": {"num_bits": 8, "type": "float", "strategy": "tensor"}}},
    "ignore": ["lm_head", "re:.*self_attn.*", "re:.*mlp.gate$"]})";
  TinyModel m(family("Qwen3MoeForCausalLM", fp8));
  m.skeleton()
      .add("model.layers.0.self_attn.q_norm.weight", {16})
      .add("model.layers.0.self_attn.k_norm.weight", {16});
  m.add("model.layers.0.mlp.gate.weight", {4, 64});
  const std::string e = "model.layers.0.mlp.experts.";
  m.add(e + "w13_weight", {4, 64, 64}, DType::kF8E4M3)
      .add(e + "w13_weight_scale", {4, 2}, DType::kF32, f32_bytes({1, 2, 3, 4, 5, 6, 7, 8}));
  m.add(e + "w13_input_scale", {4}, DType::kF32, f32_bytes({10, 20, 30, 40}));
  m.add(e + "w2_weight", {4, 64, 32}, DType::kF8E4M3)
      .add(e + "w2_weight_scale", {4}, DType::kF32, f32_bytes({1, 2, 3, 4}))
      .add(e + "w2_input_scale", {1}, DType::kF32);
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  LoadBuffer buffer;
  const auto scale = [&](const std::string& name) {
    const Module* module = c.find_module(name);
    const QuantMatrix w = reader_for(Format::kFloatQuantized).load(module->plan, c.store(), buffer);
    float value = 0;
    std::memcpy(&value, w.scales, 4);
    return value;
  };
  EXPECT_EQ(scale(e + "2.gate_proj"), 5.0f);
  EXPECT_EQ(scale(e + "2.up_proj"), 6.0f);
  EXPECT_EQ(scale(e + "2.down_proj"), 3.0f);
  EXPECT_EQ(c.find_module(e + "3.up_proj")->plan.input.scale, 40.0f);
}

TEST(Checkpoint, UnknownFamilyOpens) {
  TinyModel m(
      R"("architectures": ["NewMoeForCausalLM"], "model_type": "new_moe", "moe_num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32)");
  m.skeleton()
      .add("model.layers.0.mlp.gate.weight", {4, 64})
      .experts("model.layers.0.mlp", 4, {"gate_proj", "up_proj", "down_proj"});
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  ASSERT_EQ(c.moe_blocks().size(), 1u);
  EXPECT_FALSE(c.moe_blocks()[0].routing_reason.empty());
  EXPECT_EQ(c.config().moe_layer, std::vector<bool>{true});
  EXPECT_FALSE(c.warnings().empty());
}

TEST(Checkpoint, OldCacheScalesAreNotUsed) {
  TinyModel m = good();
  m.add("model.layers.0.self_attn.k_proj.output_scale", {1})
      .add("model.layers.0.self_attn.v_proj.output_scale", {1});
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(m.write(dir));
  EXPECT_EQ(c.unused().size(), 2u);
  TinyModel q = good();
  q.add("model.layers.0.self_attn.q_proj.output_scale", {1});
  EXPECT_TRUE(contains(open_error(q), "q_proj.output_scale"));
}

TEST(Checkpoint, BrokenConfigFiles) {
  const TempDir dir;
  good().write(dir);
  const std::string folder = dir.path().string();
  const auto with = [&](const std::string& text) {
    write_file(dir / "config.json", text);
    return error_of([&] { Checkpoint::open(folder); });
  };
  EXPECT_TRUE(contains(with("{\"a\": "), "config.json: malformed JSON"));
  EXPECT_TRUE(contains(with("{\"a\": \"\xff\"}"), "config.json: not valid UTF-8"));
  EXPECT_TRUE(contains(with("{\"a\": 1, \"a\": 2}"), "duplicate key 'a'"));
  EXPECT_TRUE(contains(with(std::string(4000, '[')), "nested deeper than 128 levels"));
  EXPECT_TRUE(contains(with("3"), "expected an object"));
  std::filesystem::remove(dir / "config.json");
  EXPECT_TRUE(contains(error_of([&] { Checkpoint::open(folder); }), "config.json: no such file"));
  EXPECT_TRUE(contains(error_of([&] { Checkpoint::open(folder + "/nowhere"); }), "not a folder"));
  std::filesystem::create_directory(dir / "config.json");
  EXPECT_TRUE(contains(error_of([&] { Checkpoint::open(folder); }), "expected a regular file"));
}

TEST(Checkpoint, GenerationConfigMustBeAnObject) {
  const TempDir dir;
  const std::string folder = good().write(dir);
  write_file(dir / "generation_config.json", "{\"eos_token_id\": [1, 2]}");
  EXPECT_TRUE(Checkpoint::open(folder).generation_config().is_object());
  write_file(dir / "generation_config.json", "[]");
  EXPECT_TRUE(contains(error_of([&] { Checkpoint::open(folder); }),
                       "generation_config.json: an array at the top"));
}

TEST(Checkpoint, FormsWithoutAConfigAreNamed) {
  const TempDir mistral, gguf, empty;
  write_file(mistral / "params.json", "{}");
  write_file(mistral / "tekken.json", "{}");
  write_file(gguf / "model-q4_k_m.gguf", "GGUF");
  const auto said = [](const TempDir& dir) {
    return error_of([&] { Checkpoint::open(dir.path().string()); });
  };
  EXPECT_TRUE(contains(said(mistral), "Mistral's own form")) << said(mistral);
  EXPECT_TRUE(contains(said(mistral), "take the Hugging Face form")) << said(mistral);
  EXPECT_TRUE(contains(said(gguf), "it is incomplete or damaged")) << said(gguf);
  EXPECT_TRUE(contains(said(empty),
                       "config.json: no such file; the folder is empty; expected config.json"));
}

}  // namespace
}  // namespace moebius::test::checkpoint_test
