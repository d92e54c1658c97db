// SPDX-License-Identifier: Apache-2.0
// NaN and Infinity in config.json: a number that the model is built from is refused by its name,
// one that nobody reads stays as harmless as any other value there.
#include <gtest/gtest.h>

#include <limits>

#include "checkpoint/quant_config.h"
#include "model/arch/arch.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::test::config_numbers_test {
namespace {

namespace fs = std::filesystem;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInfinity = std::numeric_limits<double>::infinity();

std::string refusal(const Json& config) {
  return error_of([&] {
    std::vector<std::string> warnings;
    const ModelConfig parsed = ModelConfig::parse(config, "config.json", warnings);
    QuantConfig::parse(config, "config.json", warnings);
    decoder_spec(parsed);
  });
}

// A copy of `from` with `value` for the number of that place, counted in the order of the text; the
// key that leads to it goes to `name`.
Json with_number(const Json& from, size_t& place, const Json& value, std::string& name,
                 const std::string& key = "") {
  if (from.is_number()) {
    const bool here = place-- == 0;
    if (here) name = key;
    return here ? value : from;
  }
  if (from.is_array()) {
    Json out = Json::array();
    for (const Json& item : from.items()) out.push(with_number(item, place, value, name, key));
    return out;
  }
  if (!from.is_object()) return from;
  Json out = Json::object();
  for (const auto& [member, item] : from.members())
    out.set(member, with_number(item, place, value, name, member));
  return out;
}

// A folder of every architecture, and every folder of the methods that are not compressed-tensors.
bool is_tried(const std::string& folder, const Json& config) {
  if (folder.ends_with("-dense") || folder.ends_with("-w4a16-g32")) return true;
  const Json* section = config.find("quantization_config");
  if (section == nullptr) section = config.find("quantization");
  const Json* method = section != nullptr ? section->find("quant_method") : nullptr;
  return section != nullptr &&
         (method == nullptr || !method->is_string() || method->as_string() != "compressed-tensors");
}

TEST(ConfigNumbers, WhatIsReadMustBeFinite) {
  size_t folders = 0, methods = 0, refused = 0, harmless = 0;
  for (const auto& entry : fs::directory_iterator(test_data_dir() / "golden")) {
    const std::string folder = entry.path().filename().string();
    if (!fs::exists(entry.path() / "config.json")) continue;
    const Json config = parse_json(read_file(entry.path() / "config.json"), folder);
    if (!is_tried(folder, config)) continue;
    if (!refusal(config).empty()) continue;  // layers are counted by the tensors: Nemotron-H
    ++folders;
    methods += folder.ends_with("-dense") || folder.ends_with("-w4a16-g32") ? 0 : 1;
    for (size_t i = 0;; ++i) {
      std::string name;
      const auto refused_as = [&](const Json& value) {
        size_t place = i;
        return refusal(with_number(config, place, value, name));
      };
      const std::string nan = refused_as(kNan), text = refused_as("a word");
      if (name.empty()) break;  // there are no more numbers
      SCOPED_TRACE(folder + ": " + name);
      EXPECT_EQ(nan.empty(), text.empty()) << "NaN: " << nan << "\na word: " << text;
      EXPECT_EQ(refused_as(-kInfinity).empty(), text.empty());
      if (name != "time_step_limit") {  // see below
        EXPECT_EQ(refused_as(kInfinity).empty(), text.empty());
      }
      if (!nan.empty()) {
        EXPECT_TRUE(contains(nan, name)) << nan;
      }
      (nan.empty() ? harmless : refused) += 1;
    }
  }
  EXPECT_GT(folders, 70u);
  EXPECT_GT(methods, 15u);
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(harmless, 300u);
}

// Lists of bases and shares for each layer, as published configs of Step-3.5 have them.
TEST(ConfigNumbers, ListsOfRotations) {
  const std::string text = read_file(test_data_dir() / "golden" / "step3p7-dense" / "config.json");
  const Json whole = parse_json(text, "config.json");
  const bool wrapped = whole.find("text_config") != nullptr;
  const Json& config = wrapped ? *whole.find("text_config") : whole;
  const auto layers = static_cast<size_t>(*config.find("num_hidden_layers")->as_int());
  const auto with = [&](const Json& base, const Json& share) {
    Json bases = Json::array(), shares = Json::array(), out = Json::object();
    for (size_t i = 0; i < layers; ++i)
      bases.push(i == 1 ? base : Json(10000.0)), shares.push(i == 1 ? share : Json(0.5));
    for (const auto& [key, value] : config.members())
      if (key != "rope_parameters" && key != "rope_theta" && key != "partial_rotary_factors")
        out.set(key, value);
    out.set("rope_theta", bases), out.set("partial_rotary_factors", shares);
    return wrapped ? Json::object({{"model_type", *whole.find("model_type")},
                                   {"architectures", *whole.find("architectures")},
                                   {"text_config", out}})
                   : out;
  };
  EXPECT_EQ(refusal(with(10000.0, 0.5)), "");
  for (const double wrong : {kNan, kInfinity, -kInfinity}) {
    EXPECT_TRUE(contains(refusal(with(wrong, 0.5)), "rope_theta")) << wrong;
    EXPECT_NE(refusal(with(10000.0, wrong)), "") << wrong;
  }
}

// The one place where an infinite number is meant: no limit.
TEST(ConfigNumbers, AStepLimitMayBeInfinite) {
  const std::string text =
      read_file(test_data_dir() / "golden" / "granitehybrid-dense" / "config.json");
  const Json config = parse_json(text, "config.json");
  const auto with_most = [&](const Json& most) {
    Json limit = Json::array(), out = Json::object();
    limit.push(0.25), limit.push(most);
    for (const auto& [key, value] : config.members())
      out.set(key, key == "time_step_limit" ? limit : value);
    return out;
  };
  for (const Json& most : {Json(kInfinity), Json(), Json::object({{"__float__", "Infinity"}})})
    EXPECT_EQ(refusal(with_most(most)), "") << most.dump();
  EXPECT_EQ(refusal(with_most(2.5)), "");
  for (const Json& most : {Json(kNan), Json(-kInfinity), Json("far"), Json::array(),
                           Json::object({{"__float__", "NaN"}})})
    EXPECT_TRUE(contains(refusal(with_most(most)), "time_step_limit[1]")) << most.dump();
}

}  // namespace
}  // namespace moebius::test::config_numbers_test
