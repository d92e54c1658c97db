// SPDX-License-Identifier: Apache-2.0
// `bench model --invented`: a context that was never computed is read as a computed one is; and sparse
// attention reads what it selects, in every family that has some. `bench model --synthetic`: the
// example of the help runs, and its folder is gone afterwards.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>

#include "apps/commands.h"
#include "base/file.h"
#include "base/json.h"
#include "unit/test_util.h"

namespace moebius::bench_context_test {
namespace {

namespace fs = std::filesystem;

// Of a decode step behind so many tokens.
double kv_bytes(const fs::path& folder, size_t depth, const std::string& more) {
  const test::CommandResult r =
      test::run_tool("bench model " + test::shell_quote(folder.string()) +
                     " --prompts 1 --batches 1 -t 1 --seconds 0 --steps 2 --json --depths " +
                     std::to_string(depth) + " " + more);
  EXPECT_EQ(r.status, 0) << r.err;
  if (r.status != 0) return 0;
  const Json j = parse_json(r.out, "bench");
  const Json* found = j.find("tg_b1_d" + std::to_string(depth) + "_kv_bytes_per_step");
  EXPECT_NE(found, nullptr) << r.out;
  return found != nullptr ? found->as_double() : 0;
}

Json with_fields(const Json& config, const Json& fields) {
  Json out = Json::object();
  for (const auto& [name, value] : config.members()) {
    const Json* changed = fields.find(name);
    const bool text = name == "text_config";
    out.set(name, text ? with_fields(value, fields) : changed != nullptr ? *changed : value);
  }
  return out;
}

TEST(BenchContext, InventedContextsAreReadAsComputedOnes) {
  for (const char* name : {"gptoss-dense", "deepseekv4-dense", "qwen3next-dense"}) {
    SCOPED_TRACE(name);
    const fs::path folder = test::test_data_dir() / "golden" / name;
    const double computed = kv_bytes(folder, 200, "");
    EXPECT_GT(computed, 0);
    EXPECT_EQ(kv_bytes(folder, 200, "--invented"), computed);
  }
}

// A few of 4,096 keys are selected, or most; indexers read theirs in both cases.
TEST(BenchContext, SparseAttentionReadsWhatItSelects) {
  struct Case {
    const char *folder, *budget;
    uint64_t most = 3000;
  };
  for (const Case& c :
       {Case{"deepseekv32-dense", "index_topk"}, Case{"glmmoedsa-dense", "index_topk"},
        Case{"hyv4-dense", "index_topk"}, Case{"axk2-dense", "index_topk"},
        Case{"mistrallarge4-dense", "index_topk"}, Case{"deepseekv4-dense", "index_topk", 700},
        Case{"glm5next-dense", "index_topk"}, Case{"qwen4exp-dense", "indexer_budget"},
        Case{"minimaxm3-dense", "index_topk_blocks", 700}}) {
    SCOPED_TRACE(c.folder);
    const fs::path folder = test::test_data_dir() / "golden" / c.folder;
    const Json config =
        parse_json(read_text_file((folder / "config.json").string(), 1 << 20), "config.json");
    double bytes[2];
    for (const bool most : {false, true}) {
      Json fields = Json::object({{"max_position_embeddings", uint64_t{8192}}});
      if (most) fields.set(c.budget, c.most);
      const test::TempDir dir;
      test::write_file(dir / "config.json", with_fields(config, fields).dump());
      fs::copy_file(folder / "model.safetensors", dir.path() / "model.safetensors");
      bytes[most] = kv_bytes(dir.path(), 4096, "--invented");
    }
    EXPECT_GT(bytes[0], 0);
    EXPECT_LT(bytes[0], bytes[1]);
    printf("%s: %.0f bytes of keys, %.0f where most are selected\n", c.folder, bytes[0], bytes[1]);
  }
}

// As the help writes it, but for fewer layers and steps.
std::string synthetic_example() {
  Command tool = make_tool();
  for (const Command& bench : tool.subjects)
    for (const Command& subject : bench.subjects)
      for (const std::string& example : subject.examples)
        if (const size_t at = example.find(" --layers 6"); at != std::string::npos)
          return example.substr(std::strlen("moebius "), at - std::strlen("moebius "));
  return "";
}

bool is_empty_folder(const fs::path& folder) {
  return fs::directory_iterator(folder) == fs::directory_iterator();
}

TEST(BenchSynthetic, TheExampleOfTheHelpRuns) {
  const test::TempDir dir;
  const std::string in = "TMPDIR=" + test::shell_quote(dir.path().string()),
                    example = synthetic_example();
  EXPECT_EQ(example, "bench model --synthetic qwen3-30b");
  const test::CommandResult both = test::run_tool(
      "bench model --synthetic qwen3-30b " + test::shell_quote(test::bundled_model_dir().string()));
  EXPECT_EQ(both.status, 2);
  EXPECT_NE(both.err.find("--synthetic makes a folder of its own"), std::string::npos) << both.err;
  EXPECT_NE(test::run_tool(example + " --pp 2").err.find("is for one process"), std::string::npos);
  if (!test::plain_build()) GTEST_SKIP() << "a layer of this size takes minutes here";
  const test::CommandResult r = test::run_tool(
      example + " --layers 1 --prompts 4 --batches 1 --steps 1 --seconds 0 -t 1", in);
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("qwen3-30b-1"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("\nall 48 layers: about "), std::string::npos) << r.out;
  EXPECT_TRUE(is_empty_folder(dir.path()));
}

TEST(BenchSynthetic, CtrlCRemovesTheFolder) {
  const test::TempDir dir;
  const std::string folder = test::shell_quote(dir.path().string());
  const test::CommandResult r = test::run_tool(
      "bench model --synthetic qwen3-30b --layers 256 & p=$!; until ls " + folder +
          "/*/*/model-ends* >/dev/null 2>&1; do sleep 0.02; done; kill -INT $p; wait $p",
      "TMPDIR=" + folder);
  EXPECT_EQ(r.status, 130) << r.err;
  EXPECT_TRUE(is_empty_folder(dir.path()));
}

}  // namespace
}  // namespace moebius::bench_context_test
