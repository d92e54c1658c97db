// SPDX-License-Identifier: Apache-2.0
// The contract of the command line: exit codes, what goes to stdout, JSON keys, tensors in and out.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "base/json.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/tensor_store.h"
#include "unit/test_util.h"

namespace moebius::commands_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
namespace fs = std::filesystem;

std::string golden(const char* name) {
  return shell_quote((test::test_data_dir() / "golden" / name).string());
}

std::vector<float> ramp(size_t n) {
  std::vector<float> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = std::sin(static_cast<float>(i) * 0.37f);
  return x;
}

void write_x(const fs::path& path, size_t T, size_t K, const std::vector<TensorData>& more = {}) {
  const std::vector<float> x = ramp(T * K);
  std::vector<TensorData> tensors = more;
  tensors.push_back(
      {"x", DType::kF32, {T, K}, {reinterpret_cast<const uint8_t*>(x.data()), x.size() * 4}});
  write_safetensors(path.string(), tensors);
}

TEST(Commands, ExitCodes) {
  EXPECT_EQ(run_tool("--version").status, 0);
  EXPECT_EQ(run_tool("--help").status, 0);
  EXPECT_EQ(run_tool("").status, 0);
  EXPECT_EQ(run_tool("nonsense").status, 2);
  EXPECT_EQ(run_tool("inspect --nonsense").status, 2);
  const CommandResult missing = run_tool("inspect /does/not/exist");
  EXPECT_EQ(missing.status, 1);
  EXPECT_TRUE(missing.out.empty());
  EXPECT_NE(missing.err.find("/does/not/exist"), std::string::npos);
  EXPECT_EQ(run_tool("apply only_one_argument").status, 2);
}

// Devices that stand in for other machines are those of test programs.
TEST(Commands, DevicesOfTestsAreRefused) {
  for (const char* device : {"guarded", "guarded2", "slow"})
    for (const char* option : {"--device ", "--place experts="}) {
      const CommandResult r = run_tool(std::string("run -p Hi -n 2 ") + option + device);
      EXPECT_EQ(r.status, 1) << r.out;
      EXPECT_TRUE(r.out.empty()) << r.out;
      EXPECT_NE(r.err.find(std::string("'") + device + "' is not a device of this build"),
                std::string::npos)
          << r.err;
    }
}

TEST(Commands, VerifyAndExplainInJson) {
  const CommandResult verify = run_tool("verify --json");
  ASSERT_EQ(verify.status, 0) << verify.err;
  const Json v = parse_json(verify.out, "verify");
  ASSERT_GT(v.find("modules")->items().size(), 10u);
  for (const char* key : {"name", "kernel", "numerics", "max_abs", "max_rel", "bound", "ok"})
    EXPECT_NE(v.find("modules")->items()[0].find(key), nullptr) << key;
  const CommandResult explain = run_tool("explain --json --cpu neon,dotprod");
  ASSERT_EQ(explain.status, 0) << explain.err;
  const Json e = parse_json(explain.out, "explain");
  for (const char* key : {"name", "scheme", "shape", "chosen", "numerics", "packed_bytes",
                          "file_bytes", "candidates"})
    EXPECT_NE(e.find("modules")->items()[0].find(key), nullptr) << key;
  EXPECT_EQ(e.find("modules")->items()[0].find("chosen")->as_string().rfind("arm_dotprod", 0), 0u);
  EXPECT_EQ(run_tool("verify --kernel warp_drive").status, 1);
}

TEST(Commands, VerifyEveryGoldenFolder) {
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    if (!fs::exists(entry.path() / "model.safetensors")) continue;
    const CommandResult r = run_tool("verify " + shell_quote(entry.path().string()));
    EXPECT_EQ(r.status, 0) << entry.path().filename() << ": " << r.err << r.out;
  }
}

// Rows that fit bf16 need not fit f16: they are cut to it, and a given infinity may end as any number
// that is not finite.
TEST(Commands, VerifyInHalfPrecision) {
  const test::TempDir dir;
  fs::copy(test::test_data_dir() / "golden/qwen3moe-w4a16-asym-g32", dir / "f16");
  const std::string config = test::read_file(dir / "f16/config.json"), type = "\"bfloat16\"";
  ASSERT_NE(config.find(type), std::string::npos);
  std::string changed = config;
  changed.replace(config.find(type), type.size(), "\"float16\"");
  test::write_file(dir / "f16/config.json", changed);
  const std::string verify = "verify " + shell_quote((dir / "f16").string());
  const CommandResult r = run_tool(verify);
  EXPECT_EQ(r.status, 0) << r.err << r.out;

  std::vector<float> x(3 * 64, 1.0f);
  x[64] = std::numeric_limits<float>::infinity();
  const TensorData rows{
      "x", DType::kF32, {3, 64}, {reinterpret_cast<const uint8_t*>(x.data()), x.size() * 4}};
  write_safetensors((dir / "x").string(), {&rows, 1});
  const CommandResult given =
      run_tool(verify + " --module '*.self_attn.q_proj' --in " + shell_quote((dir / "x").string()));
  EXPECT_EQ(given.status, 0) << given.err << given.out;
}

TEST(Commands, ApplyLinearBlockAndExperts) {
  const test::TempDir dir;
  const std::string model = golden("qwen3moe-w4a8-g128-pack");
  const TensorStore folder = TensorStore::open_file(
      (test::test_data_dir() / "golden/qwen3moe-w4a8-g128-pack/model.safetensors").string());
  const size_t H = folder.require("model.norm.weight").shape[0];
  write_x(dir / "x", 5, H);
  const auto run = [&](const std::string& module, const char* in, const char* out,
                       const std::string& more = "") {
    return run_tool("apply " + model + " " + module + " --in " + shell_quote((dir / in).string()) +
                    " --out " + shell_quote((dir / out).string()) + " " + more);
  };
  ASSERT_EQ(run("model.layers.0.self_attn.q_proj", "x", "q").status, 0);
  const TensorStore q = TensorStore::open_file((dir / "q").string());
  EXPECT_EQ(q.require("y").dtype, DType::kF32);
  EXPECT_EQ(q.require("y").shape[0], 5u);

  const CommandResult block = run("model.layers.0.mlp", "x", "b", "--threads 1");
  ASSERT_EQ(block.status, 0) << block.err;
  const TensorStore b = TensorStore::open_file((dir / "b").string());
  std::vector<uint8_t> ids(b.require("topk_ids").bytes), weights(b.require("topk_weights").bytes);
  EXPECT_EQ(b.require("topk_ids").dtype, DType::kI32);
  b.read(b.require("topk_ids"), 0, ids);
  b.read(b.require("topk_weights"), 0, weights);
  write_x(dir / "xi", 5, H,
          {{"topk_ids", DType::kI32, b.require("topk_ids").shape, ids},
           {"topk_weights", DType::kF32, b.require("topk_weights").shape, weights}});
  const CommandResult experts =
      run("model.layers.0.mlp.experts", "xi", "e", "--threads 2 --kernel generic");
  ASSERT_EQ(experts.status, 0) << experts.err;
  const TensorStore e = TensorStore::open_file((dir / "e").string());
  EXPECT_EQ(read_floats(b, b.require("y")),
            read_floats(e, e.require("y")));  // exact kernels agree to the byte

  EXPECT_EQ(run("model.layers.0.mlp.experts", "x", "n").status, 1);  // neither logits nor ids
  const CommandResult unknown = run("model.layers.9.mlp", "x", "n");
  EXPECT_EQ(unknown.status, 1);
  EXPECT_NE(unknown.err.find("model.layers.9.mlp"), std::string::npos);
  write_x(dir / "narrow", 2, H - 1);
  const CommandResult narrow = run("model.layers.0.mlp", "narrow", "n");
  EXPECT_EQ(narrow.status, 1);
  EXPECT_NE(narrow.err.find(std::to_string(H)), std::string::npos) << narrow.err;
  EXPECT_FALSE(fs::exists(dir / "n"));
  ASSERT_EQ(run("model.layers.0.mlp", "x", "h", "--out-dtype bf16").status, 0);
  const TensorStore h = TensorStore::open_file((dir / "h").string());
  EXPECT_EQ(h.require("y").dtype, DType::kBf16);
}

TEST(Commands, LogitsPerplexityAndText) {
  const test::TempDir dir;
  const std::string out = shell_quote((dir / "l").string());
  ASSERT_EQ(run_tool("logits " + golden("qwen3moe-dense") + " --tokens 1,2,3 --out " + out +
                     " --dtype f32")
                .status,
            0);
  const TensorStore l = TensorStore::open_file((dir / "l").string());
  EXPECT_EQ(l.require("logits").dtype, DType::kF32);
  EXPECT_EQ(l.require("logits").shape, (std::vector<uint64_t>{3, 32}));
  EXPECT_EQ(run_tool("logits " + golden("qwen3moe-dense") + " --tokens 1,99 --out " + out).status,
            1);
  EXPECT_EQ(run_tool("logits " + golden("qwen3moe-dense") + " --tokens x --out " + out).status, 1);
  const CommandResult text =
      run_tool("logits " + golden("qwen3moe-dense") + " --text hello --out " + out);
  EXPECT_EQ(text.status, 1);
  EXPECT_NE(text.err.find("tokenizer"), std::string::npos);

  const std::string eval = shell_quote((test::source_dir() / "models/eval/val.bin").string());
  const CommandResult p =
      run_tool("perplexity --tokens-file " + eval + " --ctx 64 --windows 2 --json");
  ASSERT_EQ(p.status, 0) << p.err;
  const Json j = parse_json(p.out, "perplexity");
  EXPECT_EQ(*j.find("tokens")->as_int(), 128);
  EXPECT_NEAR(j.find("perplexity")->as_double(), std::exp(j.find("loss")->as_double()), 1e-9);

  const CommandResult a = run_tool("run -p 'The sea' -n 12 --temp 0.7 --seed 5 --threads 1"),
                      b = run_tool("run -p 'The sea' -n 12 --temp 0.7 --seed 5 --threads 2");
  ASSERT_EQ(a.status, 0) << a.err;
  EXPECT_FALSE(a.out.empty());
  EXPECT_EQ(a.out, b.out);
  EXPECT_NE(a.err.find("prompt tokens"), std::string::npos);
  // Hardly a deviation below the greatest logit nothing is left but that, whatever the temperature.
  const auto said_by = [](const std::string& options) {
    return run_tool("run -p 'The sea' -n 12 --seed 5 " + options).out;
  };
  EXPECT_EQ(said_by("--temp 50 --top-n-sigma 0.000001"), said_by("--temp 0"));
  EXPECT_NE(said_by("--temp 50"), said_by("--temp 0"));
  EXPECT_EQ(said_by("--temp 0.7 --top-n-sigma -1"), a.out);
  const CommandResult json = run_tool("run -p 'The sea' -n 4 --temp 0 --json");
  ASSERT_EQ(json.status, 0);
  const Json said = parse_json(json.out, "run");
  EXPECT_EQ(said.find("tokens")->items().size(), 4u);
  const auto figure = [&](const char* key) { return said.find(key)->as_double(); };
  for (const char* key : {"prompt_tokens_per_s", "decode_tokens_per_s", "gbs", "roof_gbs"})
    EXPECT_GT(figure(key), 0) << key;
  EXPECT_NEAR(figure("percent_of_roof"), 100 * figure("gbs") / figure("roof_gbs"), 1e-6);
  EXPECT_GT(figure("peak_memory_bytes"), 1e6);
  for (const CommandResult* r : {&a, &json})
    for (const char* part : {"[load ", "first token ", " tokens/s; ", "prompt tokens at ",
                             " GB/s of weights", " % of the memory bandwidth of ", "peak memory "})
      EXPECT_NE(r->err.find(part), std::string::npos) << part;
  EXPECT_EQ(run_tool("run --chat -p Hello -n 3 --seed 1").status, 0);
  const test::TempDir turns;
  test::write_file(turns / "said", "Good morning\n\nAnd then?\n");
  const CommandResult talk =
      run_tool("run -i -n 3 --temp 0 --ignore-eos < " + shell_quote((turns / "said").string()));
  EXPECT_EQ(talk.status, 0) << talk.err;
  EXPECT_FALSE(talk.out.empty());
  EXPECT_NE(talk.err.find("6 new tokens"), std::string::npos) << talk.err;  // two answers of three
  EXPECT_EQ(run_tool("run -p '' -n 3").status, 1);
  EXPECT_EQ(run_tool("run -p 'The sea' --ctx 1").status, 1);
  EXPECT_EQ(run_tool("run -p x --top-p 7").status, 2);
}

}  // namespace
}  // namespace moebius::commands_test
