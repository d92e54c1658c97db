// SPDX-License-Identifier: Apache-2.0
// Every config of build/data/negative/configs (made by tests/python/make_negative_configs.py) is refused
// in the words its maker expects: either by the parser, or because the scheme it gives an expert
// cannot run.
#include <gtest/gtest.h>

#include "base/error.h"
#include "checkpoint/quant_config.h"
#include "unit/test_util.h"

namespace moebius::negative_configs_test {
namespace {

TEST(NegativeConfigs, AreRefusedInWords) {
  const std::filesystem::path folder = test_data_dir() / "negative/configs";
  const Json expected = parse_json(test::read_file(folder / "expected.json"), "expected.json");
  for (const auto& [name, facts] : expected.members()) {
    SCOPED_TRACE(name);
    const bool by_parser = facts.find("kind")->as_string() == "parse";
    const Json config = parse_json(test::read_file(folder / (name + ".json")), name);
    std::string message;
    std::vector<std::string> warnings;
    try {
      const QuantConfig quant = QuantConfig::parse(config, "config.json", warnings);
      EXPECT_FALSE(by_parser) << "accepted";
      const SchemeDecision d = quant.decide(facts.find("module")->as_string(), "Linear");
      EXPECT_TRUE(d.matched) << d.rule;
      message = unsupported_reason(d.scheme).value_or("");
    } catch (const Error& e) {
      EXPECT_TRUE(by_parser) << e.what();
      message = e.what();
      EXPECT_TRUE(message.starts_with("config.json: ")) << message;
    }
    for (const Json& part : facts.find("says")->items())
      EXPECT_NE(message.find(part.as_string()), std::string::npos)
          << "expected '" << part.as_string() << "' in: " << message;
  }
  size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    files += entry.path().extension() == ".json" ? 1 : 0;
  EXPECT_EQ(files, expected.members().size() + 1) << "a file without an expectation";
}

}  // namespace
}  // namespace moebius::negative_configs_test
