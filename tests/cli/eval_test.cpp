// SPDX-License-Identifier: Apache-2.0
// The contract of `eval`, and of `quantize` with calibration text: figures that follow from their
// definition, gates, the file of a base, equal bytes at any number of threads.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/json.h"
#include "base/random.h"
#include "checkpoint/tensor_store.h"
#include "unit/checkpoint/checkpoint_util.h"

namespace moebius::eval_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
namespace fs = std::filesystem;

const std::string kBase = shell_quote((test::test_data_dir() / "golden/qwen3moe-dense").string());
std::string quoted(const fs::path& path) { return shell_quote(path.string()); }

// Token ids of the tiny models, in both forms.
void write_tokens(const fs::path& folder, size_t count) {
  SplitMix64 random(3);
  std::string bytes, lines;
  for (size_t i = 0; i < count; ++i) {
    const size_t id = random.below(28) + 2;
    bytes += static_cast<char>(id);
    bytes += '\0';
    lines += (i % 32 == 0 ? "{\"input_ids\": [" : ", ") + std::to_string(id) +
             (i % 32 == 31 ? "]}\n" : "");
  }
  test::write_file(folder / "t.bin", bytes);
  test::write_file(folder / "t.jsonl", lines);
}

Json eval_json(const std::string& args) {
  const CommandResult r = run_tool("eval " + args + " --json -q");
  EXPECT_EQ(r.status, 0) << args << r.err;
  return parse_json(r.status == 0 ? r.out : "{}", "eval");
}
double number(const Json& j, const char* key) {
  const Json* v = j.find(key);
  return v != nullptr ? v->as_double() : NAN;
}

TEST(Eval, AFolderAgainstItselfLosesNothing) {
  const test::TempDir dir;
  write_tokens(dir.path(), 64);
  const Json j =
      eval_json(kBase + " --base " + kBase + " --ctx 16 --tokens-file " + quoted(dir / "t.bin"));
  EXPECT_LT(number(*j.find("kl"), "max"), 1e-6);
  EXPECT_EQ(number(j, "top1"), 1);
  EXPECT_EQ(number(j, "top_overlap"), 1);
  EXPECT_EQ(number(j, "routing"), 1);
  EXPECT_NEAR(number(j, "loss"), number(j, "base_loss"), 1e-6);
  EXPECT_EQ(number(j, "tokens"), 63);
}

TEST(Eval, FiguresGatesAndTheFileOfABase) {
  const test::TempDir dir;
  write_tokens(dir.path(), 128);
  ASSERT_EQ(
      run_tool("quantize " + kBase + " " + quoted(dir / "q") + " -q --scheme W3A16 --group 32")
          .status,
      0);
  const std::string text = " --ctx 16 --tokens-file " + quoted(dir / "t.bin"),
                    folder = quoted(dir / "q"), base = " --base " + kBase,
                    file = " --kl-cache " + quoted(dir / "kl");
  const Json j = eval_json(folder + base + text);
  const double kl = number(*j.find("kl"), "mean"), top1 = number(j, "top1");
  EXPECT_GT(kl, 0);
  EXPECT_LE(number(*j.find("kl"), "p50"), number(*j.find("kl"), "p99"));
  EXPECT_LE(number(*j.find("kl"), "p99"), number(*j.find("kl"), "max"));
  EXPECT_GT(top1, 0);
  // The other command that measures it.
  const CommandResult other =
      run_tool("perplexity " + folder + " --kl " + kBase + text + " --json -q");
  ASSERT_EQ(other.status, 0) << other.err;
  const Json p = parse_json(other.out, "perplexity");
  EXPECT_NEAR(kl, number(p, "kl"), 1e-6);
  EXPECT_NEAR(number(j, "loss"), number(p, "loss"), 1e-9);
  EXPECT_EQ(top1, number(p, "top1_agreement"));
  // All tokens of this vocabulary are in the file, so the figures are those of both models.
  fs::create_symlink("behind", dir / "kl");  // a link is followed
  const Json first = eval_json(folder + base + text + file),
             again = eval_json(folder + text + file);
  EXPECT_EQ(first.dump(), again.dump());
  EXPECT_TRUE(fs::is_symlink(dir / "kl"));
  EXPECT_TRUE(fs::is_regular_file(dir / "behind"));
  for (const auto& [name, kind] :
       {std::pair("/dev/null", "is a device"), {"/tmp", "is a folder"}}) {
    const CommandResult refused =
        run_tool("eval " + folder + " -q" + base + text + " --kl-cache " + name);
    EXPECT_EQ(refused.status, 1);
    EXPECT_EQ(refused.err, fmt::format("moebius: {}: {}; expected a regular file\n", name, kind));
  }
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_NEAR(number(*first.find("kl"), "mean"), kl, 1e-6);
  EXPECT_EQ(number(first, "routing"), number(j, "routing"));
  EXPECT_EQ(run_tool("eval " + folder + " -q" + base + text + " --max-kl 1 --min-top1 0").status,
            0);
  const CommandResult high = run_tool("eval " + folder + " -q" + base + text + " --max-kl 1e-9");
  EXPECT_EQ(high.status, 1);
  EXPECT_NE(high.err.find("--max-kl"), std::string::npos) << high.err;
  EXPECT_EQ(run_tool("eval " + folder + " -q" + base + text + " --min-top1 1.1").status, 1);
  const CommandResult windows =
      run_tool("eval " + folder + " -q --ctx 8 --tokens-file " + quoted(dir / "t.bin") + file);
  EXPECT_EQ(windows.status, 1);
  EXPECT_NE(windows.err.find("other tokens or windows"), std::string::npos) << windows.err;
  test::write_file(dir / "kl", test::read_file(dir / "kl").substr(0, 500));
  EXPECT_EQ(run_tool("eval " + folder + " -q" + text + file).status, 1);
  EXPECT_EQ(run_tool("eval " + folder + " -q" + text).status, 1);  // no base
}

TEST(Eval, CalibratedFoldersDoNotDependOnThreads) {
  const test::TempDir dir;
  write_tokens(dir.path(), 4096);
  const std::string make = "quantize " + kBase +
                           " --scheme W4A16 --group 32 -q --calib-ctx 32 --calib " +
                           quoted(dir / "t.jsonl") + " ";
  const CommandResult one = run_tool(make + quoted(dir / "one") + " --threads 1 --json");
  ASSERT_EQ(one.status, 0) << one.err;
  // The same with so little memory that every layer takes a pass of its own.
  ASSERT_EQ(run_tool(make + quoted(dir / "two") + " --threads 3 --memory 90M").status, 0);
  EXPECT_TRUE(test::read_file(dir / "one/model.safetensors") ==
              test::read_file(dir / "two/model.safetensors"));
  const Json j = parse_json(one.out, "quantize");
  EXPECT_EQ(j.find("method")->as_string(), "gptq");
  size_t by_gptq = 0;
  uint64_t experts = 0;
  for (const Json& m : j.find("made")->items()) {
    by_gptq += m.find("method")->as_string() == "gptq" ? 1 : 0;
    const bool expert = m.find("name")->as_string().find(".experts.") != std::string::npos;
    experts += expert ? m.find("rows")->as_uint() : 0;
    EXPECT_TRUE(expert || number(m, "rows") == 4096) << m.dump();
    EXPECT_GT(number(m, "loss"), 0) << m.dump();
  }
  EXPECT_GT(by_gptq, 10u);
  EXPECT_EQ(experts, 4096u * 2 * 3 * 2);  // two experts of a token, three projections, two layers
  const std::string compare =
      " --base " + kBase + " --ctx 32 --tokens-file " + quoted(dir / "t.bin");
  ASSERT_EQ(
      run_tool("quantize " + kBase + " " + quoted(dir / "rtn") + " -q --scheme W4A16 --group 32")
          .status,
      0);
  EXPECT_LT(number(*eval_json(quoted(dir / "one") + compare).find("kl"), "mean"),
            number(*eval_json(quoted(dir / "rtn") + compare).find("kl"), "mean"));
}

// A layer reads what the layers below it give as they were made: where these are left, it reads
// something else, and its codes are others.
TEST(Eval, LayersReadWhatTheMadeLayersBelowGive) {
  const test::TempDir dir;
  write_tokens(dir.path(), 4096);
  const std::string make = "quantize " + kBase + " --scheme W3A16 --group 32 -q --calib-ctx 32 ",
                    calib = " --calib " + quoted(dir / "t.jsonl"),
                    ignore = " --ignore 're:.*layers.0.*' ";
  const auto codes = [&](const std::string& name, const std::string& words) {
    const CommandResult r = run_tool(make + quoted(dir / name) + words);
    EXPECT_EQ(r.status, 0) << r.err;
    const TensorStore store = TensorStore::open_file((dir / name / "model.safetensors").string());
    const TensorInfo& t = store.require("model.layers.1.self_attn.q_proj.weight_packed");
    std::vector<uint8_t> bytes(t.bytes);
    store.read(t, 0, bytes);
    return bytes;
  };
  EXPECT_TRUE(codes("a", "") == codes("b", ignore));  // rounding reads nothing
  EXPECT_FALSE(codes("c", calib) == codes("d", calib + ignore));
}

// Rows in files, all rows through all experts, and every family's layers on their own.
TEST(Eval, RowsInFilesGiveEqualBytes) {
  const test::TempDir dir;
  write_tokens(dir.path(), 1024);
  fs::create_directory(dir / "scratch");
  const std::string make = "quantize " + kBase +
                           " --scheme W4A16 --group 32 --min-rows 0.2 -q --calib-ctx 32 --calib " +
                           quoted(dir / "t.jsonl") + " ";
  for (const char* experts : {"routed", "all"}) {
    const std::string how = std::string("--calib-experts ") + experts + " ",
                      name = std::string("a") + experts;
    ASSERT_EQ(run_tool(make + how + quoted(dir / name)).status, 0);
    const CommandResult files = run_tool(make + how + quoted(dir / (name + "2")) + " --scratch " +
                                         quoted(dir / "scratch") + " --json");
    ASSERT_EQ(files.status, 0) << files.err;
    EXPECT_GT(number(parse_json(files.out, "quantize"), "scratch"), 0);
    EXPECT_TRUE(fs::is_empty(dir / "scratch"));
    EXPECT_TRUE(test::read_file(dir / name / "model.safetensors") ==
                test::read_file(dir / (name + "2") / "model.safetensors"));
  }
  EXPECT_FALSE(test::read_file(dir / "arouted/model.safetensors") ==
               test::read_file(dir / "aall/model.safetensors"));
}

TEST(Eval, LayersSayWhereItIsLost) {
  const test::TempDir dir;
  write_tokens(dir.path(), 256);
  // Only the second layer is quantized, one of its modules coarsely.
  test::write_file(dir / "groups.json",
                   R"({"a": {"targets": ["re:.*layers.1.*experts.*proj$"], "weights":
                      {"num_bits": 8, "strategy": "channel"}},
                      "b": {"targets": ["model.layers.1.self_attn.o_proj"], "weights":
                      {"num_bits": 2, "group_size": 32}}})");
  const CommandResult r = run_tool("quantize " + kBase + " " + quoted(dir / "q") +
                                   " -q --ignore 're:.*(q_proj|k_proj|v_proj)$' --config-groups " +
                                   quoted(dir / "groups.json"));
  ASSERT_EQ(r.status, 0) << r.err;
  const std::string compare = quoted(dir / "q") + " --base " + kBase +
                              " --ctx 32 --layers --tokens-file " + quoted(dir / "t.bin");
  const Json j = eval_json(compare);
  ASSERT_EQ(j.find("hidden")->items().size(), 2u);
  EXPECT_EQ(number(j.find("hidden")->items()[0], "error"), 0);
  EXPECT_EQ(number(j.find("hidden")->items()[0], "modules"), 0);
  EXPECT_GT(number(j.find("hidden")->items()[1], "error"), 0.001);
  const Json& worst = j.find("modules")->items()[0];
  EXPECT_EQ(worst.find("name")->as_string(), "model.layers.1.self_attn.o_proj");
  EXPECT_GT(number(worst, "error"), 0.1);
  EXPECT_LT(number(worst, "error"), 1.0);
  EXPECT_EQ(number(worst, "rows"), 64);
  EXPECT_LT(number(j.find("modules")->items()[1], "error"), 0.02);
  const CommandResult text = run_tool("eval " + compare + " -q");
  EXPECT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find("worst modules"), std::string::npos) << text.out;
  EXPECT_NE(text.out.find("hidden state behind it, error in %"), std::string::npos) << text.out;
}

TEST(Eval, CalibrationIsRefusedInWords) {
  const test::TempDir dir;
  write_tokens(dir.path(), 64);
  const auto refused = [&](const std::string& args, const std::string& words, int status = 1) {
    const CommandResult r = run_tool("quantize " + kBase + " " + quoted(dir / "out") +
                                     " -q --scheme W4A16 --group 32 --overwrite " + args);
    EXPECT_EQ(r.status, status) << args << r.err;
    EXPECT_NE(r.err.find(words), std::string::npos) << args << "\n" << r.err;
    EXPECT_FALSE(fs::exists(dir / "out"));
  };
  const std::string text = "--calib " + quoted(dir / "t.jsonl");
  refused("--method gptq", "needs --calib");
  refused("--method rtn " + text, "reads no --calib");
  refused("--method awq", "awq", 2);
  refused(text, "expected at least one window of 2048");
  test::write_file(dir / "bad.jsonl", "{\"input_ids\": [1, 2]}\n{\"words\": 1}\n");
  refused("--calib " + quoted(dir / "bad.jsonl"), "bad.jsonl, line 2: neither input_ids");
  test::write_file(dir / "far.jsonl", "{\"input_ids\": [1, 40, 3, 4]}\n");
  refused("--calib-ctx 2 --calib " + quoted(dir / "far.jsonl"),
          "far.jsonl: token 40 is not in the vocabulary of 32 tokens");
  refused("--calib " + quoted(dir / "none.txt"), "none.txt");
  // A family that is not known is rounded, with modules guessed from names, but does not run.
  fs::copy(test::test_data_dir() / "golden/qwen3moe-dense", dir / "src");
  std::string config = test::read_file(dir / "src/config.json");
  for (const char* name : {"Qwen3MoeForCausalLM", "qwen3_moe"})
    config.replace(config.find(name), std::strlen(name), "nobody");
  test::write_file(dir / "src/config.json", config);
  const CommandResult r = run_tool("quantize " + quoted(dir / "src") + " " + quoted(dir / "out") +
                                   " -q --scheme W4A16 --group 32 --calib-ctx 64 " + text);
  EXPECT_EQ(r.status, 1);
  EXPECT_NE(r.err.find("--calib needs a model that runs whole: "), std::string::npos) << r.err;
}

}  // namespace
}  // namespace moebius::eval_test
