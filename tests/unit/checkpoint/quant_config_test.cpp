// SPDX-License-Identifier: Apache-2.0
// quantization_config: places, fields, deprecated spellings, presets, matching in both orders, and
// what each mistake is answered.
#include "checkpoint/quant_config.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"
#include "checkpoint/families.h"
#include "checkpoint/methods/method.h"
#include "checkpoint/quant_args_parse.h"
#include "checkpoint/tensor_store.h"
#include "unit/test_util.h"

namespace moebius::quant_config_test {
namespace {

struct Parsed {
  QuantConfig config;
  std::vector<std::string> warnings;
  std::string error;
};

Parsed parse(std::string_view text) {
  Parsed p;
  try {
    p.config = QuantConfig::parse(parse_json(text, "config.json"), "config.json", p.warnings);
  } catch (const Error& e) {
    p.error = e.what();
  }
  return p;
}

// A section with the given members (and the method).
Parsed section(std::string_view members) {
  return parse(fmt::format(
      R"({{"quantization_config": {{"quant_method": "compressed-tensors", {}}}}})", members));
}

// One pack-quantized group for Linear with these weights.
Parsed weights(std::string_view args) {
  return section(fmt::format(
      R"("format": "pack-quantized", "config_groups": {{"group_0": {{"targets": ["Linear"], "weights": {}}}}})",
      args));
}

QuantArgs weight_args(std::string_view args) {
  const Parsed p = weights(args);
  EXPECT_EQ(p.error, "") << args;
  return p.error.empty() ? *p.config.groups().at(0).scheme.weights : QuantArgs{};
}

void expect_parts(const std::string& message, std::initializer_list<std::string_view> parts) {
  for (const std::string_view part : parts)
    EXPECT_NE(message.find(part), std::string::npos) << "expected '" << part << "' in: " << message;
}

constexpr std::string_view kW4 = R"({"num_bits": 4, "strategy": "group", "group_size": 128})";

TEST(QuantConfig, ThreePlacesAndNone) {
  const std::string inner = fmt::format(
      R"({{"quant_method": "compressed-tensors", "format": "pack-quantized", "version": "0.9.1", "config_groups": {{"g": {{"targets": ["Linear"], "weights": {}}}}}}})",
      kW4);
  for (const std::string& text :
       {fmt::format(R"({{"quantization_config": {}}})", inner),
        fmt::format(R"({{"text_config": {{"quantization_config": {}}}}})", inner),
        fmt::format(R"({{"quantization_config": null, "compression_config": {}}})", inner)}) {
    const Parsed p = parse(text);
    EXPECT_EQ(p.error, "") << text;
    EXPECT_TRUE(p.config.is_quantized());
    EXPECT_EQ(p.config.method(), "compressed-tensors");
    EXPECT_EQ(p.config.version(), "0.9.1");
    EXPECT_TRUE(p.warnings.empty());
  }
  const Parsed dense = parse(R"({"model_type": "qwen3_moe"})");
  EXPECT_FALSE(dense.config.is_quantized());
  EXPECT_EQ(dense.config.method(), "");
  EXPECT_EQ(dense.config.decide("lm_head", "Linear").rule, "no quantization_config");
  EXPECT_EQ(parse(R"({"quantization_config": {}})").warnings.size(), 1u);
  expect_parts(parse(R"({"quantization_config": 3})").error,
               {"config.json: quantization_config is an integer", "expected an object"});
  expect_parts(parse(R"({"text_config": {"quantization_config": {"quant_method": "hqq"}}})").error,
               {"text_config.quantization_config.quant_method is 'hqq'"});
}

TEST(QuantConfig, OtherMethodsAreNamed) {
  size_t refused = 0;
  for (const QuantMethod& m : quant_methods()) {
    if (m.parse != nullptr) continue;
    ++refused;
    for_each_word(m.spellings, [&](std::string_view spelling, bool) {
      const Parsed p = parse(fmt::format(
          R"({{"quantization_config": {{"quant_method": "{}", "bits": 4}}}})", spelling));
      expect_parts(p.error, {fmt::format("quantization_config.quant_method is '{}'", spelling),
                             fmt::format("this is {}, which is not run: ", m.name), m.refusal});
      EXPECT_TRUE(p.warnings.empty());
    });
  }
  EXPECT_GE(refused, 15u);
  expect_parts(parse(R"({"quantization_config": {"quant_method": "something-new"}})").error,
               {"quant_method is 'something-new'", "expected one of compressed-tensors, mxfp4"});
  // MLX writes its section without a method, under either name.
  for (const std::string_view key : {"quantization", "quantization_config"})
    EXPECT_EQ(parse(fmt::format(R"({{"{}": {{"group_size": 64, "bits": 4}}}})", key)).error, "");
  EXPECT_EQ(
      parse(
          fmt::format(
              R"({{"quantization_config": {{"quant_method": "compressed_tensors", "config_groups": {{}}}}}})"))
          .error,
      "");
  expect_parts(parse(R"({"quantization_config": {"bits": 4}})").error, {"quant_method is missing"});
}

TEST(QuantArgsParser, DefaultsAndInference) {
  const QuantArgs a = weight_args("{}");
  EXPECT_EQ(a.bits, 8);
  EXPECT_EQ(a.kind, NumberKind::kInt);
  EXPECT_TRUE(a.symmetric);
  EXPECT_EQ(a.strategy, Strategy::kTensor);
  EXPECT_EQ(a.dynamic, Dynamic::kStatic);
  EXPECT_EQ(weight_args(R"({"group_size": 64})").strategy, Strategy::kGroup);
  EXPECT_EQ(weight_args(R"({"group_size": 64})").group_size, 64);
  EXPECT_EQ(weight_args(R"({"group_size": -1})").strategy, Strategy::kChannel);
  EXPECT_EQ(weight_args(R"({"group_size": -1, "strategy": "channel"})").group_size, 0);
  EXPECT_EQ(weight_args(R"({"strategy": "CHANNEL", "type": "FLOAT", "num_bits": 8})").kind,
            NumberKind::kFloat);
}

TEST(QuantArgsParser, DeprecatedSpellings) {
  const QuantArgs block =
      weight_args(R"({"type": "float", "strategy": "block", "block_structure": "128x64"})");
  EXPECT_EQ(block.block_n, 128);
  EXPECT_EQ(block.block_k, 64);
  EXPECT_EQ(
      weight_args(R"({"type": "float", "strategy": "block", "block_structure": [1, 128]})").block_k,
      128);
  const auto order = [](std::string_view value) {
    return weight_args(
               fmt::format(
                   R"({{"num_bits": 4, "strategy": "group", "group_size": 32, "actorder": {}}})",
                   value))
        .act_order;
  };
  EXPECT_EQ(order("true"), ActOrder::kGroup);
  EXPECT_EQ(order("\"group\""), ActOrder::kGroup);
  EXPECT_EQ(order("\"dynamic\""), ActOrder::kGroup);
  EXPECT_EQ(order("false"), ActOrder::kNone);
  EXPECT_EQ(order("null"), ActOrder::kNone);
  EXPECT_EQ(order("\"weight\""), ActOrder::kWeight);
  EXPECT_EQ(order("\"Static\""), ActOrder::kWeight);
  EXPECT_EQ(weight_args(R"({"strategy": "channel", "actorder": "static"})").act_order,
            ActOrder::kWeight);
  EXPECT_EQ(weight_args(R"({"scale_dtype": "torch.float8_e4m3fn"})").scale_dtype, "float8_e4m3fn");
  EXPECT_EQ(weight_args(R"({"scale_dtype": "uint8", "zp_dtype": "torch.uint8"})").scale_dtype,
            "uint8");
}

TEST(QuantArgsParser, EveryMistakeNamesFieldAndValue) {
  const std::string_view at = "config.json: quantization_config.config_groups.group_0.weights.";
  const auto bad = [&](std::string_view args, std::string_view field, std::string_view rest) {
    expect_parts(weights(args).error, {std::string(at) + std::string(field), rest});
  };
  bad(R"({"num_bits": 9})", "num_bits is 9", "1 to 8 bits");
  bad(R"({"num_bits": 0})", "num_bits is 0", "1 to 8 bits");
  bad(R"({"num_bits": 99999999999999999999})", "num_bits is ", "expected an integer");
  bad(R"({"num_bits": "4"})", "num_bits is '4'", "expected an integer");
  bad(R"({"num_bits": 6, "type": "float"})", "num_bits is 6", "4 or 8 bits");
  bad(R"({"type": "uint"})", "type is 'uint'", "int or float");
  bad(R"({"type": 1})", "type is 1", "expected a string");
  bad(R"({"symmetric": "yes"})", "symmetric is 'yes'", "true or false");
  bad(R"({"group_size": -2})", "group_size is -2", "-1 for channel");
  bad(R"({"group_size": 0})", "group_size is 0", "-1 for channel");
  bad(R"({"group_size": 9223372036854775807})", "group_size is 9223372036854775807", "expected");
  bad(R"({"strategy": "row"})", "strategy is 'row'", "tensor, channel");
  bad(R"({"strategy": "group"})", "group_size is missing", "positive group_size");
  bad(R"({"strategy": "tensor_group", "group_size": -1})", "group_size is -1",
      "positive group_size");
  bad(R"({"strategy": "channel", "group_size": 32})", "group_size is 32",
      "channel has no group_size");
  bad(R"({"strategy": "block"})", "block_structure is missing", "two positive integers");
  bad(R"({"strategy": "block", "block_structure": [128]})", "block_structure is an array",
      "two positive integers");
  bad(R"({"strategy": "block", "block_structure": [128, 0]})", "block_structure is an array",
      "two positive integers");
  bad(R"({"strategy": "block", "block_structure": "128x"})", "block_structure is '128x'",
      "two positive integers");
  bad(R"({"strategy": "channel", "block_structure": [128, 128]})", "block_structure is an array",
      "channel has no block_structure");
  bad(R"({"strategy": "token"})", "dynamic is missing", "token needs dynamic");
  bad(R"({"strategy": "channel", "dynamic": true})", "dynamic is true", "static only");
  bad(R"({"strategy": "group", "group_size": 16, "dynamic": "local"})", "dynamic is 'local'",
      "tensor_group");
  bad(R"({"dynamic": "always"})", "dynamic is 'always'", "'local'");
  bad(R"({"strategy": "channel", "actorder": "group"})", "actorder is 'group'",
      "needs strategy group");
  bad(R"({"actorder": "sideways"})", "actorder is 'sideways'", "expected group");
  bad(R"({"scale_dtype": "torch.float3"})", "scale_dtype is 'torch.float3'", "torch type");
  expect_parts(weights("[]").error,
               {"config_groups.group_0.weights is an array", "expected an object"});
}

TEST(QuantConfig, GroupMistakes) {
  const auto group = [](std::string_view value) {
    return section(
               fmt::format(R"("format": "pack-quantized", "config_groups": {{"g1": {}}})", value))
        .error;
  };
  expect_parts(group(R"({"weights": {}})"), {"config_groups.g1.targets is missing"});
  expect_parts(group(R"({"targets": [1]})"),
               {"config_groups.g1.targets[0] is 1", "expected a string"});
  expect_parts(group(R"({"targets": {}})"), {"config_groups.g1.targets is an object"});
  expect_parts(group(R"({"targets": ["Linear"], "weights": {}, "format": "mixed-precision"})"),
               {"config_groups.g1.format is 'mixed-precision'"});
  expect_parts(group(R"({"targets": ["Linear"], "weights": {}, "format": "lut-b"})"),
               {"config_groups.g1.format is 'lut-b'", "pack-quantized"});
  expect_parts(group(R"({"targets": ["Linear"], "input_activations": {"strategy": "channel"}})"),
               {"g1.input_activations.strategy is 'channel'", "token"});
  expect_parts(group(R"({"targets": ["Linear"], "input_activations": {"actorder": "weight"}})"),
               {"g1.input_activations.actorder is 'weight'"});
  expect_parts(group(R"({"targets": ["Linear"], "output_activations": {"num_bits": 12}})"),
               {"g1.output_activations.num_bits is 12"});
  expect_parts(group(R"(["Linear"])"), {"config_groups.g1 is an array", "name of a preset"});
  expect_parts(group(R"("Linear")"), {"config_groups.g1 is 'Linear'"});
  expect_parts(group("null"), {"config_groups.g1 is null"});
  expect_parts(group(R"({"targets": ["re:(unclosed"], "weights": {}})"),
               {"config_groups.g1.targets[0] is 're:(unclosed'", "not a valid regular expression"});
  expect_parts(section(R"("config_groups": [])").error, {"config_groups is an array"});
  expect_parts(section(R"("version": "0.9")").error, {"config_groups is missing"});
  expect_parts(section(R"("version": 1, "config_groups": {})").error,
               {"version is 1", "expected a string"});
  expect_parts(section(R"("ignore": [3], "config_groups": {})").error, {"ignore[0] is 3"});
  expect_parts(section(R"("ignore": ["re:["], "config_groups": {})").error,
               {"ignore[0] is 're:['", "not a valid regular expression"});
}

TEST(QuantConfig, FormatsOldAndUnknown) {
  for (const std::string_view name :
       {"marlin-24", "sparse-24-bitmask", "sparse-bitmask", "nonsense"})
    expect_parts(section(fmt::format(R"("format": "{}", "config_groups": {{}})", name)).error,
                 {"quantization_config.format is", name});
  const Parsed mixed = section(
      R"("format": "mixed-precision", "config_groups": {"g": {"targets": ["Linear"], "weights": {}}})");
  expect_parts(mixed.error, {"config_groups.g.format is missing", "mixed-precision"});
  const Parsed own = section(
      R"("format": "mixed-precision", "config_groups": {"g": {"targets": ["Linear"], "weights": {}, "format": "int-quantized"}})");
  EXPECT_EQ(own.config.groups().at(0).scheme.format, Format::kIntQuantized);
  const Parsed override_ = section(
      R"("format": "float-quantized", "config_groups": {"g": {"targets": ["Linear"], "weights": {}, "format": "pack-quantized"}})");
  EXPECT_EQ(override_.config.groups().at(0).scheme.format, Format::kPackQuantized);
  EXPECT_EQ(weights("{}").config.groups().at(0).scheme.format, Format::kPackQuantized);
  const Parsed none = section(R"("config_groups": {"g": {"targets": ["Linear"], "weights": {}}})");
  EXPECT_EQ(none.config.groups().at(0).scheme.format, Format::kDense);
  ASSERT_EQ(none.warnings.size(), 1u);
  expect_parts(none.warnings[0], {"config_groups.g.format is missing"});
}

TEST(QuantConfig, StatusIsIgnoredAndUnknownFieldsAreNamedOnce) {
  const Parsed p = section(fmt::format(
      R"("format": "pack-quantized", "quantization_status": "frozen", "colour": "blue", "run_compressed": true, "config_groups": {{"g": {{"targets": ["Linear"], "weights": {{"num_bits": 4, "strategy": "channel", "codebook": [1]}}, "input_activations": {{"dynamic": true, "strategy": "token", "codebook": 2}}, "flavour": 1}}}})"));
  EXPECT_EQ(p.error, "");
  ASSERT_EQ(p.warnings.size(), 3u);
  expect_parts(p.warnings[0], {"quantization_config.colour"});
  const std::string all = p.warnings[1] + p.warnings[2];
  expect_parts(all, {"quantization_config.config_groups.g.weights.codebook",
                     "quantization_config.config_groups.g.flavour"});
}

TEST(QuantConfig, Presets) {
  const Parsed p = section(
      R"("version": "0.15.0", "format": "mixed-precision", "config_groups": {"FP8": ["Linear"], "w8a16": ["re:.*experts.*"], "NVFP4": ["lm_head"]})");
  EXPECT_EQ(p.error, "");
  EXPECT_EQ(family_of(p.config.decide("model.x", "Linear").scheme), "fp8_static");
  EXPECT_EQ(p.config.decide("lm_head", "Linear").scheme.format, Format::kNvfp4Pack);
  EXPECT_EQ(p.config.decide("a.experts.0", "Linear").scheme.weights->strategy, Strategy::kChannel);
  EXPECT_EQ(scheme_of_preset("W8A16", "0.16.0")->weights->strategy, Strategy::kGroup);
  EXPECT_EQ(scheme_of_preset("W8A16", "0.9.4")->weights->strategy, Strategy::kChannel);
  EXPECT_EQ(scheme_of_preset("W8A16", "")->weights->group_size, 128);
  EXPECT_EQ(scheme_of_preset("W4A8", "0.19")->format, Format::kIntQuantized);
  for (const std::string_view name :
       {"W8A4", "W1A16", "W9A16", "W4A2", "W4", "FP4", "W44A16", "", "NVFP8"})
    EXPECT_EQ(scheme_of_preset(name, "0.19"), std::nullopt) << name;
  const Parsed packed = section(
      R"("version": "0.19.0", "format": "pack-quantized", "config_groups": {"W4A8": ["Linear"]})");
  EXPECT_EQ(packed.config.groups().at(0).scheme.format, Format::kPackQuantized);
  EXPECT_EQ(parse_version("0.13.1.a20260101"), std::pair(0, 13));
  EXPECT_EQ(parse_version("main"), std::nullopt);
}

TEST(QuantConfig, Mxfp8WithoutItsScaleType) {
  const Parsed p = section(
      R"("format": "mxfp8-quantized", "config_groups": {"g": {"targets": ["Linear"], "weights": {"type": "float", "strategy": "group", "group_size": 32}, "input_activations": {"type": "float", "strategy": "group", "group_size": 32, "dynamic": true}}})");
  EXPECT_EQ(family_of(p.config.groups().at(0).scheme), "mxfp8");
  EXPECT_EQ(unsupported_reason(p.config.groups().at(0).scheme), std::nullopt);
}

// The parser states what follows from the number system; nothing behind it guesses from widths.
TEST(QuantConfig, ScaleTypesOfMxfp4AreStated) {
  const auto scheme = [](const std::string& scale) {
    const std::string args =
        R"({"type": "float", "num_bits": 4, "strategy": "group", "group_size": 32)" + scale;
    return section(
               R"("format": "mxfp4-pack-quantized", "config_groups": {"g": {"targets": ["Linear"], "weights": )" +
               args + R"(}, "input_activations": )" + args + R"(, "dynamic": true}}})")
        .config.groups()
        .at(0)
        .scheme;
  };
  const Scheme unsaid = scheme("");
  EXPECT_EQ(unsaid.weights->scale_dtype, "uint8");
  EXPECT_EQ(unsaid.input->scale_dtype, "uint8");
  EXPECT_EQ(family_of(unsaid), "mxfp4");
  EXPECT_EQ(unsupported_reason(unsaid), std::nullopt);
  // Said otherwise, it is not MXFP4, and not run as if it were.
  const Scheme other = scheme(R"(, "scale_dtype": "torch.float8_e4m3fn")");
  EXPECT_EQ(other.input->scale_dtype, "float8_e4m3fn");
  EXPECT_NE(unsupported_reason(other), std::nullopt);
}

TEST(QuantConfig, SparsityAndTransforms) {
  EXPECT_EQ(section(R"("sparsity_config": {}, "config_groups": {})").error, "");
  EXPECT_EQ(section(R"("sparsity_config": null, "config_groups": {})").error, "");
  EXPECT_EQ(
      section(R"("sparsity_config": {"format": "dense", "targets": ["Linear"]}, "format": "dense")")
          .error,
      "");
  expect_parts(
      section(
          R"("sparsity_config": {"format": "sparse-24-bitmask", "targets": ["Linear"]}, "config_groups": {})")
          .error,
      {"sparsity_config.format is 'sparse-24-bitmask'", "not supported"});
  expect_parts(section(R"("sparsity_config": {"targets": ["Linear"]}, "config_groups": {})").error,
               {"sparsity_config"});
  const auto transform = [](std::string_view location) {
    return section(
               fmt::format(
                   R"("config_groups": {{}}, "transform_config": {{"config_groups": {{"R3": {{"type": "hadamard", "apply": [{{"targets": ["Linear"], "location": "weight_output"}}, {{"targets": ["x"], "location": "{}", "inverse": true}}]}}}}}})",
                   location))
        .error;
  };
  EXPECT_EQ(transform("weight_input"), "");
  for (const std::string_view online : {"input", "output", "q_attn", "k_cache"})
    expect_parts(transform(online), {"transform_config.config_groups.R3.apply[1].location is",
                                     online, "online rotations are not"});
  EXPECT_EQ(section(R"("config_groups": {}, "transform_config": {})").error, "");
  expect_parts(
      section(R"("config_groups": {}, "transform_config": {"config_groups": {"a": {"apply": 3}}})")
          .error,
      {"apply is 3"});
}

TEST(QuantConfig, KvCacheAndAttentionGroups) {
  const Parsed p = section(fmt::format(
      R"("format": "pack-quantized", "kv_cache_scheme": {{"num_bits": 8, "type": "float", "strategy": "tensor"}}, "config_groups": {{"attention": {{"targets": ["LlamaAttention"], "input_activations": {{"type": "float", "strategy": "attn_head"}}}}, "g": {{"targets": ["Linear"], "weights": {}}}}})",
      kW4));
  EXPECT_EQ(p.error, "");
  ASSERT_TRUE(p.config.kv_cache().has_value());
  EXPECT_EQ(p.config.kv_cache()->kind, NumberKind::kFloat);
  EXPECT_EQ(p.config.groups().size(), 1u);
  ASSERT_EQ(p.warnings.size(), 1u);
  expect_parts(p.warnings[0], {"config_groups.attention", "LlamaAttention"});
  expect_parts(
      section(R"("config_groups": {}, "kv_cache_scheme": {"num_bits": 3, "type": "float"})").error,
      {"kv_cache_scheme.num_bits is 3"});
}

// Two groups that can be told apart by their width.
Parsed two(std::string_view targets4, std::string_view targets8, std::string_view ignore = "[]") {
  return section(fmt::format(
      R"("format": "pack-quantized", "ignore": {}, "config_groups": {{"four": {{"targets": {}, "weights": {{"num_bits": 4, "strategy": "channel"}}}}, "eight": {{"targets": {}, "weights": {{"num_bits": 8, "strategy": "channel"}}}}}})",
      ignore, targets4, targets8));
}
int bits(const SchemeDecision& d) { return d.scheme.weights ? d.scheme.weights->bits : 0; }

TEST(QuantConfig, NameBeforeExpressionBeforeClass) {
  const Parsed p = two(R"(["Linear", "re:.*down_proj"])", R"(["a.down_proj", "re:.*up_proj$"])");
  EXPECT_EQ(bits(p.config.decide("a.down_proj", "Linear")), 8);
  EXPECT_EQ(p.config.decide("a.down_proj", "Linear").rule, "eight target 'a.down_proj' (name)");
  EXPECT_EQ(p.config.decide("b.down_proj", "Linear").rule, "four target 're:.*down_proj' (regex)");
  EXPECT_EQ(bits(p.config.decide("b.up_proj", "Linear")), 8);
  EXPECT_EQ(p.config.decide("b.gate_proj", "Linear").rule, "four target 'Linear' (class)");
  const SchemeDecision none = p.config.decide("model.embed_tokens", "Embedding");
  EXPECT_FALSE(none.matched);
  EXPECT_EQ(none.rule, "no target matches");
  EXPECT_TRUE(none.scheme.is_dense());
}

TEST(QuantConfig, ExpressionsMatchFromTheStartOnly) {
  const Parsed p = two(R"(["re:layers"])", R"(["re:model\\.layers\\.\\d+\\.mlp"])");
  EXPECT_EQ(bits(p.config.decide("model.layers.0.x", "Linear")), 0);
  EXPECT_EQ(bits(p.config.decide("layers.0.x", "Linear")), 4);
  EXPECT_EQ(bits(p.config.decide("model.layers.12.mlp.experts.0", "Linear")), 8);
  EXPECT_EQ(bits(p.config.decide("modelxlayers.12.mlp", "Linear")), 0);
}

TEST(QuantConfig, PythonExpressions) {
  const auto matches = [](std::string_view pattern, std::string_view name) {
    const Parsed p = two(fmt::format(R"(["re:{}"])", pattern), "[]");
    EXPECT_EQ(p.error, "") << pattern;
    return bits(p.config.decide(name, "Linear")) == 4;
  };
  EXPECT_TRUE(matches(R"(.*mlp\\.(?!gate$).*)", "a.mlp.up"));
  EXPECT_FALSE(matches(R"(.*mlp\\.(?!gate$).*)", "a.mlp.gate"));
  EXPECT_TRUE(matches(R"((?P<layer>\\d+)\\.(?P=layer)$)", "7.7"));
  EXPECT_FALSE(matches(R"((?P<layer>\\d+)\\.(?P=layer)$)", "7.8"));
  EXPECT_TRUE(matches(R"((?i)MODEL\\..*)", "model.x"));
  EXPECT_TRUE(matches(R"((?ai)MODEL)", "model"));
  EXPECT_TRUE(matches(R"((?u)model)", "model"));
  EXPECT_TRUE(matches(R"(a{,2}b)", "aab"));
  EXPECT_FALSE(matches(R"(a{,2}b)", "aaab"));
  EXPECT_TRUE(matches(R"([]{,2}]+x)", "],{x"));
  EXPECT_TRUE(matches(R"((?<=m)?model$)", "model"));
  EXPECT_FALSE(matches(R"(model\\Z)", "models"));
  EXPECT_TRUE(matches("", "anything"));
}

TEST(QuantConfig, PathologicalExpressionsEndWithAnError) {
  const Parsed p = two(R"(["re:(a+)+$"])", "[]");
  ASSERT_EQ(p.error, "");
  try {
    p.config.decide(std::string(60, 'a') + "b", "Linear");
    FAIL() << "no error";
  } catch (const Error& e) {
    expect_parts(e.what(), {"config_groups.four.targets[0]", "re:(a+)+$", "limit"});
  }
  expect_parts(two(fmt::format(R"(["re:{}"])", std::string(20000, 'a')), "[]").error,
               {"20000 bytes", "at most 16384"});
  expect_parts(two(R"(["re:(((a{999}){999}){999}){999}"])", "[]").error,
               {"targets[0]", "not a valid regular expression"});
  expect_parts(
      two(fmt::format(R"(["re:{}a{}"])", std::string(5000, '('), std::string(5000, ')')), "[]")
          .error,
      {"not a valid regular expression"});
}

TEST(QuantConfig, IgnoreByNameExpressionAndClass) {
  const Parsed p =
      two(R"(["Linear", "Embedding"])", "[]", R"(["lm_head", "re:.*mlp.gate$", "Embedding"])");
  const SchemeDecision head = p.config.decide("lm_head", "Linear");
  EXPECT_TRUE(head.ignored);
  EXPECT_FALSE(head.matched);
  EXPECT_EQ(head.rule, "ignore 'lm_head'");
  EXPECT_TRUE(p.config.decide("model.layers.0.mlp.gate", "Linear").ignored);
  EXPECT_FALSE(p.config.decide("model.layers.0.mlp.gate_proj", "Linear").ignored);
  EXPECT_EQ(p.config.decide("model.embed_tokens", "Embedding").rule, "ignore 'Embedding'");
  EXPECT_FALSE(p.config.decide_like_vllm("model.embed_tokens", "Embedding")
                   .ignored);  // classes are no entries there
  EXPECT_TRUE(p.config.decide_like_vllm("lm_head", "Linear").ignored);
  EXPECT_FALSE(two(R"(["Linear"])", "[]", "null").config.decide("lm_head", "Linear").ignored);
}

TEST(QuantConfig, OrdersThatDisagreeAreWarnedAbout) {
  const Parsed p = two(R"(["re:.*mlp.*"])", R"(["re:.*down.*", "a.mlp.up"])");
  const SchemeDecision d = p.config.decide("a.mlp.down", "Linear");
  EXPECT_EQ(bits(d), 8);  // by alphabet
  expect_parts(d.warning, {"'re:.*down.*' (eight)", "'re:.*mlp.*' (four)", "vLLM"});
  EXPECT_EQ(bits(p.config.decide_like_vllm("a.mlp.down", "Linear")), 4);  // by order of the file
  EXPECT_EQ(p.config.decide("b.mlp.down", "Linear").warning, d.warning);
  EXPECT_EQ(bits(p.config.decide("a.mlp.up", "Linear")), 8);
  EXPECT_NE(p.config.decide("a.mlp.up", "Linear").warning, "");
  EXPECT_EQ(p.config.decide("a.mlp.gate", "Linear").warning, "");
  const Parsed same = two(R"(["re:.*mlp.*", "re:.*down.*"])", "[]");
  EXPECT_EQ(same.config.decide("a.mlp.down", "Linear").warning, "");
  const Parsed again = two(R"(["Linear"])", R"(["Linear"])");
  EXPECT_EQ(bits(again.config.decide("x", "Linear")), 8);
  ASSERT_EQ(again.warnings.size(), 1u);
  expect_parts(again.warnings[0], {"'Linear'", "four", "later group counts"});
}

TEST(QuantConfig, VllmsWaysToNameAModule) {
  const auto like = [](std::string_view targets, std::string_view module,
                       std::string_view class_name = "Linear") {
    const Parsed p = two(targets, "[]");
    EXPECT_EQ(bits(p.config.decide(module, class_name)), 0) << module;
    return bits(p.config.decide_like_vllm(module, class_name));
  };
  EXPECT_EQ(like(R"(["linear"])", "a.q_proj"), 4);
  EXPECT_EQ(like(R"(["Linear"])", "a.q_proj", "ColumnParallelLinear"), 4);
  EXPECT_EQ(like(R"(["re:.*qkv_proj"])", "a.q_proj"), 4);
  EXPECT_EQ(like(R"(["a.q_proj", "a.k_proj", "a.v_proj"])", "a.qkv_proj"), 4);
  EXPECT_EQ(like(R"(["a.q_proj", "a.k_proj"])", "a.qkv_proj"), 0);
  EXPECT_EQ(like(R"(["a.gate_proj", "a.up_proj"])", "a.gate_up_proj"), 4);
  EXPECT_EQ(like(R"(["a.fused_qkv_a_proj"])", "a.kv_a_proj_with_mqa"), 4);
  EXPECT_EQ(like(R"(["FusedMoE"])", "a.experts.3.up_proj"), 4);
  EXPECT_EQ(like(R"(["RoutedExperts"])", "a.experts.3.up_proj"), 4);
  EXPECT_EQ(like(R"(["RoutedExperts"])", "a.q_proj"), 0);
  EXPECT_EQ(like(R"(["re:.*experts[.]\\d+[.]gate_proj"])", "m.experts.3.w1"), 4);
  EXPECT_EQ(like(R"(["a.experts.gate_up_proj"])", "a.experts.3.up_proj"), 4);
  EXPECT_EQ(like(R"(["a.experts.down_proj"])", "a.experts.3.down_proj"), 4);
  EXPECT_EQ(like(R"(["a.experts"])", "a.experts.3.down_proj"), 4);
  EXPECT_EQ(like(R"(["model.language_model.x.q_proj"])", "language_model.model.x.q_proj"), 4);
  EXPECT_EQ(like(R"(["model.x.q_proj"])", "model.language_model.x.q_proj"), 4);
  EXPECT_EQ(like(R"(["model.x.q_proj", ""])", "model.y.q_proj"), 0);
}

TEST(QuantConfig, NativeMxfp4) {
  const Parsed p = parse(
      R"({"quantization_config": {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router", "model.embed_tokens", "lm_head"]}})");
  EXPECT_EQ(p.error, "");
  EXPECT_TRUE(p.warnings.empty());
  EXPECT_EQ(p.config.method(), "mxfp4");
  for (const std::string_view name :
       {"model.layers.0.mlp.experts.3.gate_proj", "model.layers.0.mlp.experts"}) {
    const SchemeDecision d = p.config.decide(name, "Linear");
    EXPECT_EQ(d.scheme.format, Format::kGptOssMxfp4);
    EXPECT_EQ(family_of(d.scheme), "mxfp4a16");
    EXPECT_EQ(unsupported_reason(d.scheme), std::nullopt);
  }
  EXPECT_TRUE(p.config.decide("model.layers.12.self_attn.q_proj", "Linear").ignored);
  EXPECT_TRUE(p.config.decide("model.layers.3.mlp.router", "Linear").ignored);
  EXPECT_TRUE(p.config.decide("lm_head", "Linear").ignored);
  EXPECT_FALSE(p.config.decide("model.layers.3.mlp.other", "Linear").matched);
}

TEST(QuantConfig, ManyExplicitNames) {
  std::string names = "[";
  for (int i = 0; i < 20000; ++i)
    names += fmt::format("{}\"model.layers.{}.mlp.gate\"", i > 0 ? "," : "", i);
  const Parsed p = two(R"(["Linear"])", "[]", names + "]");
  EXPECT_EQ(p.config.ignore().size(), 20000u);
  for (int i = 0; i < 50000; ++i)
    ASSERT_EQ(p.config.decide(fmt::format("model.layers.{}.mlp.gate", i), "Linear").ignored,
              i < 20000);
}

// Every module of the committed folders that is stored quantized gets a scheme that runs, by the
// first order.
TEST(QuantConfig, CommittedFoldersAreUnderstood) {
  size_t folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(test_data_dir() / "golden")) {
    const std::filesystem::path path = entry.path() / "config.json";
    if (!std::filesystem::exists(path)) continue;
    SCOPED_TRACE(entry.path().filename().string());
    std::vector<std::string> warnings;
    const QuantConfig config = QuantConfig::parse(parse_json(test::read_file(path), "config.json"),
                                                  "config.json", warnings);
    if (config.rules() != nullptr) continue;  // by their tensors: methods_test.cpp
    EXPECT_TRUE(warnings.empty()) << warnings[0];
    if (!config.is_quantized()) continue;
    ++folders;
    const TensorStore store = TensorStore::open_folder(entry.path().string(), warnings);
    size_t quantized = 0;
    for (const TensorInfo& t : store.tensors()) {
      constexpr std::string_view kSuffix = ".weight_scale";
      if (!t.name.ends_with(kSuffix)) continue;
      const std::string module = t.name.substr(0, t.name.size() - kSuffix.size());
      const SchemeDecision d = config.decide(module, "Linear");
      EXPECT_TRUE(d.matched) << module << ": " << d.rule;
      const auto reason = unsupported_reason(d.scheme);
      EXPECT_EQ(reason, std::nullopt) << module << ": " << *reason;
      ++quantized;
    }
    EXPECT_TRUE(quantized > 0 || config.method() == "mxfp4");
  }
  EXPECT_GT(folders, 40u);
}

}  // namespace
}  // namespace moebius::quant_config_test
