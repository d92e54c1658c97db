// SPDX-License-Identifier: Apache-2.0
// Commands on ranks that are threads of the tool's process: the same answers.
#include <gtest/gtest.h>

#include <regex>

#include "base/json.h"
#include "unit/test_util.h"

namespace moebius::ranks_cli_test {
namespace {

using test::CommandResult;
using test::run_tool;

TEST(RanksCli, TheSameTextInEveryForm) {
  const std::string base = "run -p 'Once upon a time' -n 24 --temp 0.7 --seed 5 ";
  const CommandResult want = run_tool(base);
  ASSERT_EQ(want.status, 0) << want.err;
  for (const char* form : {"--tp 2 --ep 2", "--pp 2", "--tp 2", "--ep 2", "--ranks 2"}) {
    const CommandResult r = run_tool(base + form);
    EXPECT_EQ(r.status, 0) << form << ": " << r.err;
    EXPECT_EQ(r.out, want.out) << form;
    for (const char* rank : {"[rank 0 ", "[rank 1 "})
      EXPECT_NE(r.err.find(rank), std::string::npos) << form << ": " << r.err;
    const std::string size = "[0-9.]+ [kMG]B ";
    EXPECT_TRUE(std::regex_search(r.err, std::regex("] loaded " + size + "of weights, " + size +
                                                    "in memory, " + size + "at most")))
        << form << ": " << r.err;
  }
}

TEST(RanksCli, WhatCannotBeIsSaid) {
  const auto refused = [](const std::string& form) {
    const CommandResult r = run_tool("run -p x -n 1 " + form);
    EXPECT_NE(r.status, 0) << form;
    EXPECT_EQ(r.out, "") << form;
    return r.err;
  };
  EXPECT_NE(refused("--tp 2 --spare 4").find("--spare 4 without --ep"), std::string::npos);
  EXPECT_NE(refused("--tp 2 --attention repeat").find("--attention repeat without --ep"),
            std::string::npos);
  EXPECT_NE(refused("--pp 1000").find("num_hidden_layers"), std::string::npos);
  EXPECT_NE(refused("--ep 1000").find("experts on 1000 ranks"), std::string::npos);
  EXPECT_NE(refused("--ranks 3 --pp 2").find("--ranks 3, but pp 2 are 2 ranks"), std::string::npos);
}

TEST(RanksCli, ExplainListsSplitsBestFirst) {
  const CommandResult r = run_tool("explain --json --ranks 4 --link 10G,30us --node 64x256G");
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = parse_json(r.out, "explain");
  const Json* splits = j.find("splits");
  ASSERT_NE(splits, nullptr);
  EXPECT_GE(splits->items().size(), 4u);
  EXPECT_EQ(run_tool("explain --ranks 4 --node 64").status, 1);
}

}  // namespace
}  // namespace moebius::ranks_cli_test
