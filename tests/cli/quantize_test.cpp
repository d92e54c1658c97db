// SPDX-License-Identifier: Apache-2.0
// The contract of `quantize`: a folder called DST is whole; a run that was killed goes on with equal
// bytes; what cannot be made is refused in words that name file, module, found and expected.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>

#include "base/json.h"
#include "base/numeric.h"
#include "base/sha256.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/tensor_store.h"
#include "unit/checkpoint/checkpoint_util.h"
#include "unit/test_util.h"

namespace moebius::quantize_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
namespace fs = std::filesystem;

std::string golden(const std::string& name) {
  return shell_quote((test::test_data_dir() / "golden" / name).string());
}
std::string quoted(const fs::path& path) { return shell_quote(path.string()); }

// Every file of a folder but the journal, whose names and times of the source may differ.
std::map<std::string, std::string> hashes_of(const fs::path& folder) {
  std::map<std::string, std::string> out;
  for (const fs::directory_entry& e : fs::recursive_directory_iterator(folder)) {
    if (!e.is_regular_file()) continue;
    Sha256 sha;
    const std::string bytes = test::read_file(e.path());
    sha.add({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
    out.emplace(fs::relative(e.path(), folder).string(), sha.hex());
  }
  return out;
}

// No loader takes it, or it is whole: config.json is its last file, behind it only the name is missing.
void expect_unfinished(const fs::path& partial, const std::map<std::string, std::string>& whole) {
  if (fs::exists(partial / "config.json")) {
    EXPECT_EQ(hashes_of(partial), whole);
  } else {
    EXPECT_EQ(run_tool("inspect " + quoted(partial)).status, 1);
  }
}

void refused(const std::string& args, const std::string& words, int status = 1) {
  const CommandResult r = run_tool("quantize " + args);
  EXPECT_EQ(r.status, status) << args << r.out << r.err;
  EXPECT_NE(r.err.find(words), std::string::npos) << args << "\n" << r.err;
  EXPECT_EQ(r.out, "") << args;
}

TEST(Quantize, EveryFamilyLoadsAndRuns) {
  for (const char* name : {"qwen3moe", "deepseekv3", "qwen2moe", "gptoss", "mixtral", "llama4"}) {
    const test::TempDir dir;
    SCOPED_TRACE(name);
    const CommandResult r = run_tool("quantize " + golden(std::string(name) + "-dense") + " " +
                                     quoted(dir / "out") + " --scheme w4a8 --group -1 --json");
    ASSERT_EQ(r.status, 0) << r.err;
    const Json j = parse_json(r.out, "quantize");
    EXPECT_TRUE(j.find("done")->as_bool());
    EXPECT_FALSE(fs::exists(dir / "out.partial"));
    EXPECT_EQ(run_tool("verify " + quoted(dir / "out")).status, 0);
    const CommandResult logits = run_tool("logits " + quoted(dir / "out") +
                                          " --tokens 1,2,3 --out " + quoted(dir / "logits"));
    EXPECT_EQ(logits.status, 0) << logits.err;
  }
}

// Biases of fused experts, gate and up of a shared MLP in one matrix, halves that alternate.
TEST(Quantize, EveryLayoutIsCalibrated) {
  for (const char* name : {"gptoss", "granitemoeshared", "inkling", "qwen2moe"}) {
    const test::TempDir dir;
    SCOPED_TRACE(name);
    const CommandResult r =
        run_tool("quantize " + golden(std::string(name) + "-dense") + " " + quoted(dir / "out") +
                 " -q --json --scheme W4A8 --group -1 --min-rows 0 --calib-ctx 64 --shard-size 20K "
                 "--calib " +
                 golden("calibration.jsonl"));
    ASSERT_EQ(r.status, 0) << r.err;
    const Json report = parse_json(r.out, "quantize");
    for (const Json& m : report.find("made")->items())
      EXPECT_EQ(m.find("method")->as_string(), "gptq") << m.dump();
    EXPECT_EQ(run_tool("verify " + quoted(dir / "out")).status, 0);
  }
}

TEST(Quantize, BytesDoNotDependOnThreadsMemoryOrShards) {
  const test::TempDir dir;
  const std::string make =
      "quantize " + golden("qwen3moe-dense") + " -q --scheme W4A16 --group 32 ";
  ASSERT_EQ(run_tool(make + quoted(dir / "one") + " --threads 1").status, 0);
  ASSERT_EQ(run_tool(make + quoted(dir / "many") + " --threads 16").status, 0);
  ASSERT_EQ(run_tool(make + quoted(dir / "little") + " --threads 16 --memory 90M").status, 0);
  EXPECT_EQ(hashes_of(dir / "one"), hashes_of(dir / "many"));
  EXPECT_EQ(hashes_of(dir / "one"), hashes_of(dir / "little"));
  ASSERT_EQ(run_tool(make + quoted(dir / "shards") + " --shard-size 20K").status, 0);
  std::vector<std::string> warnings;
  const TensorStore whole = TensorStore::open_folder((dir / "one").string(), warnings),
                    shards = TensorStore::open_folder((dir / "shards").string(), warnings);
  EXPECT_GE(shards.files().size(), 3u);
  ASSERT_EQ(whole.tensors().size(), shards.tensors().size());
  for (const TensorInfo& t : whole.tensors()) {
    const TensorInfo& other = shards.require(t.name);
    std::vector<uint8_t> a(t.bytes), b(other.bytes);
    whole.read(t, 0, a), shards.read(other, 0, b);
    EXPECT_TRUE(a == b && t.dtype == other.dtype && t.shape == other.shape) << t.name;
    EXPECT_TRUE(t.bytes % 8 != 0 || t.offset % 8 == 0) << t.name;
  }
  EXPECT_EQ(
      run_tool("logits " + quoted(dir / "shards") + " --tokens 1,2 --out " + quoted(dir / "l"))
          .status,
      0);
}

TEST(Quantize, ConfigKeepsItsTextAndOtherFilesAreCopied) {
  const test::TempDir dir;
  fs::copy(test::test_data_dir() / "golden/qwen3moe-dense", dir / "src");
  const std::string config =
      "{\n \"initializer_range\": 2e-02,\n" + test::read_file(dir / "src/config.json").substr(2);
  test::write_file(dir / "src/config.json", config);
  for (const char* name : {"tokenizer_config.json", "chat_template.jinja", "modeling_x.py",
                           "LICENSE", "README.md", "optimizer.bin", "recipe.yaml"})
    test::write_file(dir / "src" / name, std::string("of ") + name);
  // The double key is only in this test's text.
  std::string text = config;
  const size_t second = text.rfind("  \"initializer_range\"");
  text.erase(second, text.find('\n', second) + 1 - second);
  test::write_file(dir / "src/config.json", text);
  const CommandResult r = run_tool("quantize " + quoted(dir / "src") + " " + quoted(dir / "out") +
                                   " --scheme FP8_DYNAMIC");
  ASSERT_EQ(r.status, 0) << r.err;
  const std::string made = test::read_file(dir / "out/config.json");
  const size_t at = made.find(",\n \"quantization_config\": {");
  ASSERT_NE(at, std::string::npos) << made;
  EXPECT_EQ(made.substr(0, at) + "\n}\n", text.ends_with("\n") ? text : text + "\n");
  EXPECT_EQ(test::read_file(dir / "out/README.source.md"), "of README.md");
  for (const char* name :
       {"tokenizer_config.json", "chat_template.jinja", "modeling_x.py", "LICENSE"})
    EXPECT_EQ(test::read_file(dir / "out" / name), std::string("of ") + name);
  for (const char* name : {"optimizer.bin", "recipe.yaml", "README.md", "expected.safetensors"})
    EXPECT_FALSE(fs::exists(dir / "out" / name)) << name;
}

TEST(Quantize, NativeFp8IsDecodedFirst) {
  const test::TempDir dir;
  const CommandResult r = run_tool("quantize " + golden("qwen3moe-native-fp8-ragged") + " " +
                                   quoted(dir / "out") + " --scheme W8A8");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("decoded to bf16"), std::string::npos) << r.err;
  const Json config = parse_json(test::read_file(dir / "out/config.json"), "config");
  EXPECT_EQ(config.find("quantization_config")->find("quant_method")->as_string(),
            "compressed-tensors");
  EXPECT_EQ(run_tool("verify " + quoted(dir / "out")).status, 0);
}

// --dtype gives the bytes of a source that was written in that type.
TEST(Quantize, AnotherTypeIsThatOfASourceOfThisType) {
  const test::TempDir dir;
  const TensorStore store = TensorStore::open_file(
      (test::test_data_dir() / "golden/qwen3moe-dense/model.safetensors").string());
  std::deque<std::vector<uint16_t>> data;
  std::vector<TensorData> tensors;
  for (const TensorInfo& t : store.tensors()) {
    ASSERT_EQ(t.dtype, DType::kBf16);
    std::vector<uint16_t>& v = data.emplace_back(t.bytes / 2);
    const std::span bytes(reinterpret_cast<uint8_t*>(v.data()), t.bytes);
    store.read(t, 0, bytes);
    for (uint16_t& x : v) x = f32_to_f16(bf16_to_f32(x));
    tensors.push_back({t.name, DType::kF16, t.shape, bytes});
  }
  std::string config = test::read_file(test::test_data_dir() / "golden/qwen3moe-dense/config.json");
  config.replace(config.find("bfloat16"), 8, "float16");
  test::write_file(dir / "src/config.json", config);
  write_safetensors((dir / "src/model.safetensors").string(), tensors);
  for (const char* scheme : {"W4A16 --group 32", "NVFP4A16", "W8A8 --method search"}) {
    SCOPED_TRACE(scheme);
    const std::string how = std::string(" -q --overwrite --scheme ") + scheme;
    ASSERT_EQ(run_tool("quantize " + quoted(dir / "src") + " " + quoted(dir / "a") + how).status,
              0);
    const CommandResult r = run_tool("quantize " + golden("qwen3moe-dense") + " " +
                                     quoted(dir / "b") + " --dtype f16" + how);
    ASSERT_EQ(r.status, 0) << r.err;
    EXPECT_TRUE(test::read_file(dir / "a/model.safetensors") ==
                test::read_file(dir / "b/model.safetensors"));
    EXPECT_EQ(parse_json(test::read_file(dir / "a/config.json"), "a").dump(),
              parse_json(test::read_file(dir / "b/config.json"), "b").dump());
  }
}

TEST(Quantize, DryRunWritesNothing) {
  const test::TempDir dir;
  const CommandResult r = run_tool("quantize " + golden("qwen3moe-dense") + " " +
                                   quoted(dir / "out") + " --scheme NVFP4A16 --dry-run");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("bits per quantized weight"), std::string::npos) << r.err;
  EXPECT_NE(r.err.find("router"), std::string::npos) << r.err;
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Quantize, RefusesInWords) {
  const test::TempDir dir;
  const std::string src = golden("qwen3moe-dense"), to = " " + quoted(dir / "out") + " ";
  refused(src + to + "--scheme w4a61", "did you mean W4A16?", 2);
  for (const auto& [typed, near] :
       {std::pair("q4_k_m", "W4A16"), {"Q8_0", "W8A16"}, {"iq3_xs", "W3A16"}, {"int4", "W4A16"}})
    refused(src + to + "--scheme " + typed,
            fmt::format("there is no scheme '{}'; did you mean {}? there are W4A16, W4A16_ASYM, ",
                        typed, near),
            2);
  refused(src + to + "--scheme zzzzzzzz", "no scheme 'zzzzzzzz'; there are W4A16, ", 2);
  refused(src + to, "--scheme", 2);
  refused(src + to + "--scheme NVFP4", "expected --calib with text");
  refused(src + to + "--scheme W4A16", "a group of 128 does not divide the inputs of");
  refused(src + to + "--scheme W4A16 --group 48", "--group 32 does");
  refused(src + to + "--scheme FP8_DYNAMIC --group 32", "integer weights");
  refused(src + to + "--scheme W8A8 --format pack", "stored as int-quantized");
  refused(src + to + "--scheme W8A8 --targets re:nothing", "matches no module");
  refused(src + to + "--scheme W8A8 --targets model.norm", "expected a matrix");
  refused(src + to + "--scheme W8A8 --targets 're:.*(gate|q_proj|k_proj|v_proj)$' --ignore-only",
          "is a router and matches");
  refused(src + to + "--scheme W8A8 --ignore 're:.*up_proj$'", "engines load them as one matrix");
  refused(src + to + "--scheme W8A8 --ignore model.layers.0.self_attn.v_proj",
          "model.layers.0.self_attn.v_proj");
  refused(src + to + "--scheme W8A8 --ignore 're:.*experts.2.*'", "experts.2.");
  refused(src + to + "--scheme W3A16 --group 32 --for vllm", "int3");
  refused(golden("qwen3moe-w8a8-dynamic") + to + "--scheme W4A16", "already quantized");
  refused(src + to + "--scheme W8A8 --memory 1M", "of memory, and 1 MB may be used");
  refused(
      src + " " + quoted(test::test_data_dir() / "golden/qwen3moe-dense/inside") + " --scheme W8A8",
      "which is only read");
  refused(src + to + "--scheme W8A8 --resume", "no such unfinished run");
  refused(src + to + "--scheme W8A8 --shard-size lots", "expected a size", 2);
  if (fs::exists("/proc/self"))
    refused(src + " /proc/out --scheme W8A8",
            "/proc/out: needs 1.14 MB, and the disk has 0 B free");
  test::write_file(dir / "out/file", "");
  refused(src + to + "--scheme W8A8 --overwrite", "exists and is not empty");
  refused(src + " " + quoted(dir / "no/such/out") + " --scheme W8A8",
          "no/such: there is no such folder");
  refused(src + " " + quoted(dir / "out/file") + " --scheme W8A8",
          "out/file: exists and is no folder");
  test::write_file(dir / "other.partial/precious", "");
  for (const char* how : {"", " --overwrite", " --resume"})
    refused(src + " " + quoted(dir / "other") + " --scheme W8A8" + how,
            "other.partial: exists and is not an unfinished run of this program");
  EXPECT_TRUE(fs::exists(dir / "other.partial/precious"));
  refused(src + " " + quoted(dir / "x") + " --scheme W8A8 --damp -1", "--damp is -1; expected");
  refused(src + " " + quoted(dir / "x") + " --scheme W8A8 --min-rows nan", "--min-rows is nan");
}

// A link that leads nowhere, or out of the folder where that is not wanted, is found before the work.
TEST(Quantize, FilesBesideTheWeightsAreReadOrRefusedFirst) {
  const test::TempDir dir;
  fs::copy(test::test_data_dir() / "golden/qwen3moe-dense", dir / "src");
  for (const char* name : {"README.md", "README.source.md", "README.txt"})
    test::write_file(dir / "src" / name, std::string("of ") + name);
  const std::string make = quoted(dir / "src") + " " + quoted(dir / "out") + " -q --scheme W8A8";
  fs::create_symlink(dir / "nowhere", dir / "src/tokenizer.json");
  refused(make, "src/tokenizer.json: is a symbolic link to ");
  fs::remove(dir / "src/tokenizer.json");
  test::write_file(dir / "far.json", "{}");
  fs::create_symlink(dir / "far.json", dir / "src/tokenizer.json");
  refused(make + " --no-follow", "outside the folder");
  EXPECT_FALSE(fs::exists(dir / "out.partial"));
  ASSERT_EQ(run_tool("quantize " + make).status, 0);
  EXPECT_EQ(test::read_file(dir / "out/tokenizer.json"), "{}");
  EXPECT_EQ(test::read_file(dir / "out/README.source.md"), "of README.md");
  EXPECT_EQ(test::read_file(dir / "out/README.source.source.md"), "of README.source.md");
  EXPECT_EQ(test::read_file(dir / "out/README.source.txt"), "of README.txt");
}

TEST(Quantize, RefusesGroupsThatReadersReadDifferently) {
  const test::TempDir dir;
  const auto groups = [&](const std::string& text) {
    test::write_file(dir / "groups.json", text);
    return golden("qwen3moe-dense") + " " + quoted(dir / "out") + " --config-groups " +
           quoted(dir / "groups.json");
  };
  const std::string four = "\"weights\": {\"num_bits\": 4, \"group_size\": 32}",
                    eight = "\"weights\": {\"num_bits\": 8, \"strategy\": \"channel\"}";
  refused(groups("{\"a\": {\"targets\": [\"re:.*proj\"], " + four +
                 "}, \"b\": {\"targets\": "
                 "[\"re:.*experts.*\"], " +
                 eight + "}}"),
          "match the same modules");
  refused(groups("{\"a\": {\"targets\": [\"re:.*gate_proj$\"], " + four +
                 "}, \"b\": {\"targets\": "
                 "[\"re:.*up_proj$\", \"re:.*down_proj$\"], " +
                 eight + "}}"),
          "engines load them as one matrix");
  refused(groups("{\"a\": {\"targets\": [\"Linear\"], \"weights\": {\"num_bits\": 8, \"type\": "
                 "\"float\", \"strategy\": \"tensor\"}, \"input_activations\": {\"num_bits\": 8, "
                 "\"type\": \"float\", \"strategy\": \"tensor\", \"dynamic\": false}}}"),
          "come from activations");
  refused(groups("[]"), "expected an object");
  const CommandResult mixed = run_tool(
      "quantize " + groups("{\"a\": {\"targets\": [\"re:.*self_attn.*\"], " + eight +
                           ", \"input_activations\": {\"num_bits\": 8, \"strategy\": \"token\", "
                           "\"dynamic\": true}}, \"b\": {\"targets\": [\"re:.*mlp.*proj$\"], " +
                           four + "}}"));
  ASSERT_EQ(mixed.status, 0) << mixed.err;
  const Json section =
      *parse_json(test::read_file(dir / "out/config.json"), "config").find("quantization_config");
  EXPECT_EQ(section.find("format")->as_string(), "mixed-precision");
  EXPECT_EQ(run_tool("verify " + quoted(dir / "out")).status, 0);
}

// A copy of a golden folder with one bf16 number of a tensor changed.
void with_number(const fs::path& folder, const std::string& tensor, size_t at, uint16_t bits) {
  fs::remove_all(folder);
  fs::copy(test::test_data_dir() / "golden/qwen3moe-dense", folder);
  const TensorStore store = TensorStore::open_file((folder / "model.safetensors").string());
  std::string bytes = test::read_file(folder / "model.safetensors");
  std::memcpy(bytes.data() + store.require(tensor).offset + 2 * at, &bits, sizeof bits);
  test::write_file(folder / "model.safetensors", bytes);
}

TEST(Quantize, RefusesWeightsThatAreNoNumbers) {
  const test::TempDir dir;
  const std::string make =
                        quoted(dir / "src") + " " + quoted(dir / "out") + " --overwrite --scheme ",
                    calib = " --calib-ctx 64 --calib " + golden("calibration.jsonl");
  with_number(dir / "src", "model.layers.0.self_attn.k_proj.weight", 64 + 5, 0x7fc0);
  for (const char* scheme : {"W8A8", "W4A16 --group 32", "NVFP4A16", "MXFP4", "FP8_BLOCK"})
    refused(make + scheme, "model.layers.0.self_attn.k_proj is NaN; expected finite weights");
  EXPECT_FALSE(fs::exists(dir / "out"));
  EXPECT_FALSE(fs::exists(dir / "out.partial/config.json"));
  // What is left as it is may hold anything, but a model that gives no numbers calibrates nothing.
  with_number(dir / "src", "model.layers.0.input_layernorm.weight", 7, 0x7fc0);
  for (const char* how : {"W4A16 --group 32 --method gptq", "W8A8 --method search", "FP8"})
    refused(make + how + calib, "reads numbers that are not finite");
  // 1.7e38 is no number of f16.
  for (const char* tensor : {"model.norm.weight", "model.layers.0.mlp.gate.weight"}) {
    with_number(dir / "src", tensor, 3, 0x7f00);
    refused(make + "W8A8 --dtype f16", std::string("model.safetensors: ") + tensor +
                                           ": holds 1.7014118e+38, which float16 does not");
  }
  with_number(dir / "src", "model.layers.0.self_attn.k_proj.weight", 3, 0x7f00);
  refused(make + "W8A8 --dtype f16",
          "element [0,3] of model.layers.0.self_attn.k_proj is infinite");
}

// The disk is full from the n-th write on, for every n: words, exit 1, nothing that loads unless it is
// whole; and the run goes on when there is room. ./test --full takes every n, else some of them.
TEST(Quantize, AFullDiskLeavesNothingThatLoads) {
  if (test::full_disk_library().empty())
    GTEST_SKIP() << "no library can be loaded before this program";
  const test::TempDir dir;
  const std::string make = golden("qwen3moe-dense") + " -q --threads 1 --scheme W8A8 ";
  ASSERT_EQ(run_tool("quantize " + make + quoted(dir / "whole") + " --shard-size 40K").status, 0);
  const auto whole = hashes_of(dir / "whole");
  // The dynamic linker takes a space for the end of a name.
  fs::create_symlink(test::full_disk_library(), dir / "full_disk.so");
  const auto at = [&](int n) {
    return "LD_PRELOAD=" + quoted(dir / "full_disk.so") + " FULL_DISK_AT=" + std::to_string(n);
  };
  int failed = 0, n = 1;
  for (bool done = false; !done; n += test::full_run() ? 1 : 1 + n / 4) {
    SCOPED_TRACE(n);
    const CommandResult r =
        run_tool("quantize " + make + quoted(dir / "out") + " --shard-size 40K", at(n));
    done = r.status == 0;
    if (done) break;
    ++failed;
    ASSERT_EQ(r.status, 1) << r.err;
    EXPECT_NE(r.err.find("No space left"), std::string::npos) << r.err;
    // The last things that can fail are to give the folder its name and to make the name durable: then
    // it is whole.
    if (!fs::exists(dir / "out")) {
      expect_unfinished(dir / "out.partial", whole);
      const bool begun = fs::exists(dir / "out.partial/moebius-quantize.json");
      if (!begun) fs::remove_all(dir / "out.partial");
      const CommandResult again = run_tool("quantize " + make + quoted(dir / "out") +
                                           " --shard-size 40K" + (begun ? " --resume" : ""));
      ASSERT_EQ(again.status, 0) << again.err;
    }
    EXPECT_EQ(hashes_of(dir / "out"), whole);
    fs::remove_all(dir / "out");
  }
  EXPECT_GT(failed, 10);
  EXPECT_EQ(hashes_of(dir / "out"), whole);
}

TEST(Quantize, CtrlCSaysHowToGoOn) {
  const test::TempDir dir;
  std::string tokens;  // so many that the calibration takes long
  for (size_t i = 0; i < 400000; ++i) tokens += {static_cast<char>(i * i % 29 + 2), 0};
  test::write_file(dir / "t.bin", tokens);
  const std::string out = quoted(dir / "out"), begun = quoted(dir / "out.partial") + "/moebius-*";
  const CommandResult r =
      run_tool("quantize " + golden("qwen3moe-dense") + " " + out +
               " -q --threads 1 --scheme W4A16 --group 32 --calib-tokens 400000 --calib " +
               quoted(dir / "t.bin") + " & for i in $(seq 600); do ls " + begun +
               " >/dev/null 2>&1 && break; sleep 0.1; done; kill -INT $!; wait $!");
  EXPECT_EQ(r.status, 130) << r.err;
  EXPECT_EQ(r.err, "moebius: interrupted; " + (dir / "out").string() +
                       ".partial is unfinished: continue with --resume\n");
}

TEST(Quantize, ResumeGoesOnWithEqualBytesOrSaysWhatDiffers) {
  const test::TempDir dir;
  fs::copy(test::test_data_dir() / "golden/qwen3moe-dense", dir / "src");
  const std::string make =
      quoted(dir / "src") + " " + quoted(dir / "out") + " -q --scheme W8A8 --shard-size 20K ";
  ASSERT_EQ(run_tool("quantize " + make).status, 0);
  const auto whole = hashes_of(dir / "out");
  // As a run that was killed behind its second file leaves it.
  const auto cut = [&] {
    fs::remove_all(dir / "out.partial");
    fs::copy(dir / "out", dir / "out.partial");
    fs::remove(dir / "out.partial/config.json");
    fs::remove(dir / "out.partial/model.safetensors.index.json");
    Json journal = parse_json(test::read_file(dir / "out/moebius-quantize.json"), "journal");
    Json shorter = Json::object();
    for (const auto& [key, value] : journal.members()) {
      Json kept = value;
      if (key == "shards") {
        kept = Json::array();
        for (size_t i = 0; i < 2; ++i) kept.push(value.items()[i]);
      }
      shorter.set(key, kept);
    }
    test::write_file(dir / "out.partial/moebius-quantize.json", shorter.dump());
    for (size_t i = 3; i < 40; ++i)
      for (const fs::directory_entry& e : fs::directory_iterator(dir / "out.partial"))
        if (e.path().filename().string().starts_with("model-0000" + std::to_string(i))) {
          fs::resize_file(e.path(), 100);
          fs::rename(e.path(), e.path().string() + ".tmp");
          break;
        }
  };
  cut();
  fs::rename(dir / "out", dir / "first");
  refused(make, "--resume goes on with it");
  refused(make + "--resume --sym --group 32", "begun with another choice of options");
  const CommandResult r = run_tool("quantize " + make + "--resume");
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(hashes_of(dir / "out"), whole);
  cut();
  fs::rename(dir / "out", dir / "second");
  test::write_file(dir / "out.partial/model-00001-of-00001.safetensors", "");
  for (const fs::directory_entry& e : fs::directory_iterator(dir / "out.partial"))
    if (e.path().filename().string().starts_with("model-00002")) fs::resize_file(e.path(), 90);
  refused(make + "--resume", "is not what the unfinished run wrote");
  const std::string bytes = test::read_file(dir / "src/model.safetensors");
  test::write_file(dir / "src/model.safetensors", bytes);  // the same, at another time
  refused(make + "--resume", "begun with another source");
}

// Killed at some moment, then resumed (or begun, where nothing was): 20 times by ./test --full.
void killed_and_resumed(const std::string& make, double seconds_each) {
  const int kills = test::full_run() ? 20 : 4;
  const test::TempDir dir;
  ASSERT_EQ(run_tool("quantize " + make + quoted(dir / "whole")).status, 0);
  const auto whole = hashes_of(dir / "whole");
  for (int i = 0; i < kills; ++i) {
    SCOPED_TRACE(i);
    const std::string seconds =
        fmt::format("{:.3f}", 0.004 + seconds_each * (i * 7 % kills) * 20 / kills);
    run_tool("quantize " + make + quoted(dir / "out") + " & p=$!; sleep " + seconds +
             "; kill -9 $p 2>/dev/null; wait $p 2>/dev/null; true");
    if (!fs::exists(dir / "out")) {
      expect_unfinished(dir / "out.partial", whole);
      const bool begun = fs::exists(dir / "out.partial/moebius-quantize.json");
      if (!begun) fs::remove_all(dir / "out.partial");
      const CommandResult r =
          run_tool("quantize " + make + quoted(dir / "out") + (begun ? " --resume" : ""));
      ASSERT_EQ(r.status, 0) << r.err;
    }
    EXPECT_EQ(hashes_of(dir / "out"), whole);
    fs::remove_all(dir / "out");
  }
}

TEST(Quantize, KilledRunsEndInEqualBytes) {
  killed_and_resumed(golden("deepseekv3-dense") + " -q --scheme MXFP4 --shard-size 10K ", 0.003);
}

const char* const kCalibrated = " -q --scheme W4A16 --group 32 --min-rows 0.1 --calib-ctx 64 ";

TEST(Quantize, KilledCalibratedRunsEndInEqualBytes) {
  for (const char* shards : {" --shard-size 20K ", " "})
    killed_and_resumed(golden("olmoe-dense") + kCalibrated + shards + "--calib " +
                           golden("calibration.jsonl") + " ",
                       0.006);
}

// One file for all layers: the layers that were finished are in it, and the journal says so.
TEST(Quantize, ResumeGoesOnBehindTheLastFinishedLayer) {
  if (test::full_disk_library().empty())
    GTEST_SKIP() << "no library can be loaded before this program";
  const test::TempDir dir;
  const std::string make = golden("olmoe-dense") + kCalibrated + "--threads 1 --calib " +
                           golden("calibration.jsonl") + " " + quoted(dir / "out");
  ASSERT_EQ(run_tool("quantize " + make).status, 0);
  const auto whole = hashes_of(dir / "out");
  fs::rename(dir / "out", dir / "first");
  fs::create_symlink(test::full_disk_library(), dir / "full_disk.so");
  const auto journal = [&](const char* folder) {
    return parse_json(test::read_file(dir / folder / "moebius-quantize.json"), "journal");
  };
  const auto at = [&](int n) {
    return "LD_PRELOAD=" + quoted(dir / "full_disk.so") + " FULL_DISK_AT=" + std::to_string(n);
  };
  int n = 20;  // of a write behind the first layer
  for (bool begun = false; !begun; n += 20) {
    fs::remove_all(dir / "out.partial");
    ASSERT_EQ(run_tool("quantize " + make, at(n)).status, 1) << "no layer was settled";
    begun = journal("out.partial").find("begun") != nullptr;
  }
  fs::copy(dir / "out.partial", dir / "stopped");
  for (const bool damaged : {false, true}) {  // then the file begins anew
    if (damaged) {
      fs::copy(dir / "stopped", dir / "out.partial");
      const fs::path path = dir / "out.partial/model.safetensors.tmp";
      std::string bytes = test::read_file(path);
      uint64_t header = 0;
      std::memcpy(&header, bytes.data(), sizeof header);
      bytes[8 + header] = static_cast<char>(bytes[8 + header] ^ 1);
      test::write_file(path, bytes);
    }
    const CommandResult r = run_tool("quantize " + make + " --resume");
    ASSERT_EQ(r.status, 0) << r.err;
    EXPECT_EQ(hashes_of(dir / "out"), whole);
    EXPECT_EQ(journal("out").find("begun"), nullptr);
    EXPECT_EQ(journal("out").find("modules")->dump(), journal("first").find("modules")->dump());
    fs::remove_all(dir / "out");
  }
}

}  // namespace
}  // namespace moebius::quantize_test
