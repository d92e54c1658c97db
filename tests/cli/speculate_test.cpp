// SPDX-License-Identifier: Apache-2.0
// --speculate: the text is that without it, and what cannot be had is refused in words.
#include <gtest/gtest.h>

#include "base/json.h"
#include "unit/test_util.h"

namespace moebius::test::speculate_test {
namespace {

std::string folder_of(std::string_view name) {
  return shell_quote((test_data_dir() / "golden-mtp" / name).string());
}

TEST(Speculate, TextIsTheSame) {
  for (const char* name : {"qwen35moe", "deepseekv3"}) {
    const std::string run = "run " + folder_of(name) + " --tokens 3,4,5,6,7 -n 40 --json --seed 3";
    const auto tokens = [&](const char* how) {
      const CommandResult r = run_tool(run + " --speculate " + how);
      EXPECT_EQ(r.status, 0) << r.err;
      return parse_json(r.out, how).find("tokens")->dump();
    };
    const std::string plain = tokens("off");
    EXPECT_EQ(tokens("mtp"), plain);
    EXPECT_EQ(tokens("lookup"), plain);
  }
}

TEST(Speculate, WhatCannotBeHadIsRefused) {
  const std::string plain = shell_quote((test_data_dir() / "golden" / "qwen3moe-dense").string());
  const auto refused = [](const std::string& args, std::string_view words) {
    const CommandResult r = run_tool(args);
    EXPECT_NE(r.status, 0) << args;
    EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
  };
  refused("run " + plain + " --tokens 3 -n 2 --speculate mtp",
          "has no layer for multi-token prediction");
  refused("run " + plain + " --tokens 3 -n 2 --speculate lookup --pp 2", "--speculate lookup");
  refused("run " + folder_of("glm4moe") + " --tokens 3 -n 2 --speculate mtp --tp 2",
          "runs in one process");
  const CommandResult r = run_tool("run " + plain + " --tokens 3 -n 2 --pp 2");
  EXPECT_EQ(r.status, 0) << r.err;
}

TEST(Speculate, BenchComparesWithAndWithout) {
  const CommandResult r = run_tool(
      "bench engine " + folder_of("glm4moe") +
      " --requests 2 --rate 1000 --prompt-tokens 8 --new-tokens 8 --rounds 1 --speculate mtp "
      "--predictions own --json");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(parse_json(r.out, "bench").find("predictions")->as_string(), "own");
}

TEST(Speculate, InspectAndExplainShowTheLayer) {
  const CommandResult json = run_tool("inspect --json " + folder_of("qwen3next"));
  ASSERT_EQ(json.status, 0) << json.err;
  const Json heads = *parse_json(json.out, "inspect").find("prediction_heads");
  EXPECT_TRUE(heads.find("runs")->as_bool());
  EXPECT_GT(heads.find("packed_bytes")->as_int().value_or(0), 0);
  EXPECT_GT(heads.find("modules")->items().size(), 8u);
  const CommandResult text = run_tool("inspect " + folder_of("qwen3next"));
  EXPECT_NE(text.out.find("--speculate mtp"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("mtp.layers.0.self_attn"), std::string::npos) << text.out;
  const CommandResult why = run_tool("explain " + folder_of("deepseekv3"));
  EXPECT_NE(why.out.find("eh_proj"), std::string::npos) << why.out;
}

}  // namespace
}  // namespace moebius::test::speculate_test
