// SPDX-License-Identifier: Apache-2.0
// Configurations of GPTQ, AWQ and AutoRound: fields, defaults, and the rules that give a module its
// numbers.
#include <gtest/gtest.h>

#include "checkpoint/methods/method.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::methods_packed_test {
namespace {

struct Parsed {
  QuantConfig config;
  std::vector<std::string> warnings;

  explicit Parsed(const std::string& section) {
    const Json json = parse_json("{\"quantization_config\": " + section + "}", "config.json");
    config = QuantConfig::parse(json, "config.json", warnings);
  }
  SchemeDecision decide(const std::string& module) const {
    ModuleTensors tensors;
    const TensorStore store;
    return config.rules()->decide({module, module, false, tensors, store});
  }
  std::string scheme(const std::string& module) const { return describe(decide(module).scheme); }
  std::string dense_by(const std::string& module) const { return config.rules()->dense_by(module); }
};

TEST(PackedMethods, GptqDefaults) {
  const Parsed p(R"({"quant_method": "gptq", "bits": 4})");
  EXPECT_EQ(p.config.method(), "gptq");
  EXPECT_EQ(p.scheme("x"), "w4a16 int4 g128 sym, gptq");
  EXPECT_EQ(p.dense_by("lm_head"), "lm_head false");
  EXPECT_EQ(p.dense_by("model.layers.0.mlp.gate"), "");
  EXPECT_TRUE(p.warnings.empty());
}

TEST(PackedMethods, GptqFields) {
  EXPECT_EQ(Parsed(R"({"quant_method": "gptq", "bits": 8, "group_size": -1, "sym": false,
                       "desc_act": true, "format": "gptq_v2"})")
                .scheme("x"),
            "w8a16 int8 per channel asym, gptq_v2");
  EXPECT_EQ(Parsed(R"({"quant_method": "gptq", "bits": 3, "group_size": 32, "desc_act": true,
                       "checkpoint_format": "gptq_p", "format": "gptq", "lm_head": true})")
                .scheme("x"),
            "w3a16 int3 g32 sym act-order, gptq_p");
}

TEST(PackedMethods, GptqDynamicFirstMatchWins) {
  const Parsed p(R"({"quant_method": "gptq", "bits": 4, "group_size": 64, "dynamic": {
      "-:.*v_proj$": {},
      "+:.*self_attn.*": {"bits": 8, "group_size": -1},
      "model.layers.1.": {"sym": false, "desc_act": true},
      ".*down_proj": {"bits": 2}}})");
  EXPECT_EQ(p.scheme("model.layers.1.self_attn.q_proj"), "w8a16 int8 per channel sym, gptq");
  EXPECT_EQ(p.decide("model.layers.1.self_attn.q_proj").rule, "gptq, dynamic '+:.*self_attn.*'");
  EXPECT_EQ(p.scheme("model.layers.1.mlp.down_proj"), "w4a16 int4 g64 asym act-order, gptq");
  EXPECT_EQ(p.scheme("model.layers.0.mlp.down_proj"), "w2a16 int2 g64 sym, gptq");
  EXPECT_EQ(p.scheme("model.layers.0.mlp.up_proj"), "w4a16 int4 g64 sym, gptq");
  EXPECT_EQ(p.dense_by("model.layers.1.self_attn.v_proj"), "dynamic '-:.*v_proj$'");
  EXPECT_EQ(p.dense_by("model.layers.1.self_attn.q_proj"), "");
  // From the start of the name, not anywhere in it.
  EXPECT_EQ(p.scheme("x.model.layers.1.mlp.up_proj"), "w4a16 int4 g64 sym, gptq");
}

TEST(PackedMethods, GptqOddWidthsArePlanes) {
  const Parsed p(R"({"quant_method": "gptq", "bits": 3, "checkpoint_format": "gptq",
                     "dynamic": {".*up_proj": {"bits": 6}}})");
  EXPECT_EQ(p.scheme("a.down_proj"), "w3a16 int3 g128 sym, gptq_p");
  EXPECT_EQ(p.scheme("a.up_proj"), "w6a16 int6 g128 sym, gptq_p");
  ASSERT_EQ(p.warnings.size(), 1u);
  EXPECT_TRUE(contains(p.warnings[0], "stored as gptq_p")) << p.warnings[0];
}

TEST(PackedMethods, Awq) {
  const Parsed p(R"({"quant_method": "awq", "w_bit": 4, "q_group_size": 64, "zero_point": true,
                     "version": "GEMM", "modules_to_not_convert": ["model.layers.0.", "visual"]})");
  EXPECT_EQ(p.scheme("x"), "w4a16 int4 g64 asym, awq");
  EXPECT_EQ(p.dense_by("model.layers.0.mlp.up_proj"), "modules_to_not_convert 'model.layers.0.'");
  EXPECT_EQ(p.dense_by("model.layers.10.mlp.up_proj"), "");
  EXPECT_EQ(p.dense_by("lm_head"), "lm_head false");
  EXPECT_EQ(Parsed(R"({"quant_method": "awq", "bits": 4, "group_size": -1, "zero_point": false,
                       "version": "gemv"})")
                .scheme("x"),
            "w4a16 int4 per channel sym, awq-gemv");
  // GPTQModel's fields: `format` for the layout, `sym` where zero_point is not said.
  EXPECT_EQ(Parsed(R"({"quant_method": "awq", "bits": 4, "group_size": 32, "sym": true,
                       "desc_act": false, "format": "gemm"})")
                .scheme("x"),
            "w4a16 int4 g32 sym, awq");
}

TEST(PackedMethods, AutoRoundPackings) {
  const auto packed = [](const std::string& packing) {
    return Parsed(R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": false)" +
                  packing + "}")
        .scheme("x");
  };
  EXPECT_EQ(packed(""), "w4a16 int4 g32 asym, gptq");
  EXPECT_EQ(packed(R"(, "packing_format": "auto_round:auto_gptq")"), "w4a16 int4 g32 asym, gptq");
  EXPECT_EQ(packed(R"(, "packing_format": "auto_round:gptqmodel")"),
            "w4a16 int4 g32 asym, gptq_v2");
  EXPECT_EQ(packed(R"(, "packing_format": "auto_round")"), "w4a16 int4 g32 asym, gptq_v2");
  EXPECT_EQ(packed(R"(, "packing_format": "auto_round:auto_awq")"), "w4a16 int4 g32 asym, awq");
  const std::string floats = R"(, "packing_format": "auto_round:llm_compressor")";
  EXPECT_EQ(packed(floats + R"(, "data_type": "mx_fp", "act_bits": 4)"),
            "mxfp4 e2m1 g32, e2m1 g32 dynamic, mxfp4-pack-quantized");
  EXPECT_EQ(packed(floats + R"(, "data_type": "nv_fp")"),
            "nvfp4a16 e2m1 g16, nvfp4-pack-quantized");
}

TEST(PackedMethods, AutoRoundOrderOfRules) {
  const Parsed p(R"({"quant_method": "auto-round", "bits": 4, "group_size": 32, "sym": true,
      "block_name_to_quantize": "model.layers, model.other", "extra_config": {
      ".*q_proj": {"bits": 2},
      "self_attn.q_proj": {"bits": 3},
      "model.layers.0.self_attn.q_proj": {"bits": 8},
      "model.layers.0.mlp.gate": {"bits": 16, "data_type": "float"},
      "layers\\.1\\..*v_proj": {"group_size": 64, "sym": false}}})");
  EXPECT_EQ(p.scheme("model.layers.0.self_attn.q_proj"), "w8a16 int8 g32 sym, gptq");  // exact
  EXPECT_EQ(p.scheme("model.layers.1.self_attn.q_proj"), "w3a16 int3 g32 sym, gptq");  // the end
  EXPECT_EQ(p.scheme("model.layers.1.cross_attn.q_proj"), "w2a16 int2 g32 sym, gptq");
  EXPECT_EQ(p.scheme("model.layers.1.self_attn.v_proj"), "w4a16 int4 g64 asym, gptq");  // search
  EXPECT_EQ(p.scheme("model.layers.0.self_attn.v_proj"), "w4a16 int4 g32 sym, gptq");
  EXPECT_EQ(p.dense_by("model.layers.0.mlp.gate"), "extra_config 'model.layers.0.mlp.gate'");
  EXPECT_EQ(p.dense_by("model.layers.0.mlp.gate_proj"), "");  // a name is no expression
  EXPECT_EQ(p.dense_by("visual.proj"), "block_name_to_quantize");
  EXPECT_EQ(p.dense_by("model.other.1.x"), "");
  EXPECT_TRUE(contains(p.dense_by("lm_head"), "does not name lm_head"));
}

TEST(PackedMethods, UnknownFieldsAreSaidOnce) {
  const Parsed p(R"({"quant_method": "gptq", "bits": 4, "novelty": 1,
                     "dynamic": {".*a": {"novelty": 2}, ".*b": {"novelty": 3}}})");
  ASSERT_EQ(p.warnings.size(), 1u);
  EXPECT_TRUE(contains(p.warnings[0], "novelty")) << p.warnings[0];
}

}  // namespace
}  // namespace moebius::test::methods_packed_test
