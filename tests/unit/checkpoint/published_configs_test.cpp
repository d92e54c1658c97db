// SPDX-License-Identifier: Apache-2.0
// Configs in the style of published checkpoints (build/data/golden/configs): every listed module gets
// exactly the scheme that compressed-tensors' own matching gives it, and the scheme runs. Other
// methods are refused by name.
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/quant_args_parse.h"
#include "checkpoint/quant_config.h"
#include "unit/test_util.h"

namespace moebius::published_configs_test {
namespace {

std::optional<QuantArgs> expected_args(const Json& scheme, std::string_view key) {
  const Json* value = scheme.find(key);
  if (value == nullptr || value->is_null()) return std::nullopt;
  std::vector<std::string> warnings;
  QuantFieldsContext context{"expected.json", &warnings, {}, {}};
  return parse_quant_args(*value, std::string(key), ArgsRole::kKvCache, context);
}

std::string show(std::optional<QuantArgs> args) { return args ? describe(*args) : "none"; }

void check_module(const QuantConfig& config, const std::string& module, const Json& expected) {
  SCOPED_TRACE(module);
  const SchemeDecision d = config.decide(module, "Linear");
  EXPECT_EQ(d.warning, "");
  if (expected.is_null()) {
    EXPECT_TRUE(d.scheme.is_dense()) << d.rule;
    return;
  }
  ASSERT_TRUE(d.matched) << d.rule;
  EXPECT_EQ(unsupported_reason(d.scheme), std::nullopt);
  EXPECT_EQ(name_of(d.scheme.format), expected.find("format")->as_string());
  EXPECT_EQ(show(d.scheme.weights), show(expected_args(expected, "weights")));
  EXPECT_EQ(show(d.scheme.input), show(expected_args(expected, "input_activations")));
  EXPECT_EQ(show(d.scheme.output), show(expected_args(expected, "output_activations")));
}

TEST(PublishedConfigs, GiveTheSchemesOfTheLibrary) {
  const std::filesystem::path folder = test_data_dir() / "golden/configs";
  const Json expected = parse_json(test::read_file(folder / "expected.json"), "expected.json");
  size_t modules = 0, others = 0;
  for (const auto& [name, facts] : expected.members()) {
    SCOPED_TRACE(name);
    const Json config = parse_json(test::read_file(folder / (name + ".json")), name);
    std::vector<std::string> warnings;
    if (const Json* list = facts.find("modules")) {
      const QuantConfig quant = QuantConfig::parse(config, name, warnings);
      EXPECT_TRUE(warnings.empty()) << warnings[0];
      for (const auto& [module, scheme] : list->members()) {
        check_module(quant, module, scheme);
        ++modules;
      }
    } else if (const std::string method = facts.find("quant_method")->as_string();
               method == "mxfp4" || method == "fp8") {
      const QuantConfig quant = QuantConfig::parse(config, name, warnings);
      EXPECT_EQ(quant.method(), method);
      ++others;
    } else {
      const std::string quoted = "'" + method + "'";
      try {
        QuantConfig::parse(config, name, warnings);
        ADD_FAILURE() << "no error";
      } catch (const Error& e) {
        EXPECT_NE(std::string(e.what()).find(quoted), std::string::npos) << e.what();
      }
      ++others;
    }
  }
  EXPECT_GT(modules, 100u);
  EXPECT_GE(others, 2u);
}

}  // namespace
}  // namespace moebius::published_configs_test
