// SPDX-License-Identifier: Apache-2.0
// GGUF files on the command line: every command that takes a folder takes one, in every form that
// users have it; a chat template of one's own; packed weights of a file that changed.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <set>

#include "apps/commands.h"
#include "base/json.h"
#include "checkpoint/safetensors.h"
#include "cli/served_util.h"
#include "moebius/model.hpp"
#include "moebius/moebius.h"
#include "unit/test_util.h"

namespace moebius::gguf_cli_test {
namespace {

namespace fs = std::filesystem;
using test::CommandResult;
using test::run_tool;
using test::shell_quote;

fs::path made(const std::string& name) { return test::test_data_dir() / "negative/gguf" / name; }
std::string model() { return (made("odd") / "shown.gguf").string(); }

// Adds the names of all commands that take the folder of a model.
void gather(const Command& c, std::set<std::string>& out) {
  for (const Option& o : c.positional)
    if (o.kind == ValueKind::kFolder || o.names.front() == "DIR") out.insert(c.name);
  for (const Command& subject : c.subjects) gather(subject, out);
}

TEST(GgufCli, EveryCommandThatTakesAFolderTakesAFile) {
  const test::TempDir dir;
  const auto file = [&](const char* name) { return shell_quote((dir / name).string()); };
  test::write_file(dir / "text", std::string(100, 'a'));
  const std::vector<float> x(64, 0.5f);
  const std::vector<TensorData> tensors = {
      {"x", DType::kF32, {1, 64}, {reinterpret_cast<const uint8_t*>(x.data()), 256}}};
  write_safetensors((dir / "x").string(), tensors);
  const std::string text = " -f " + file("text") + " --ctx 8 --windows 1";
  const std::map<std::string, std::string> arguments = {
      {"run", " -p ab -n 2"},
      {"serve", ""},
      {"inspect", " --deep"},
      {"explain", ""},
      {"verify", ""},
      {"apply", " model.layers.0.self_attn.q_proj --in " + file("x") + " --out " + file("y")},
      {"bench linear",
       " --module model.layers.0.self_attn.q_proj --tokens 1 --threads 1 --seconds 0"},
      {"bench moe", " --tokens 1 --threads 1 --seconds 0"},
      {"bench model", " --prompts 1 --batches 1 --steps 2 --seconds 0 --threads 1"},
      {"bench engine", " --requests 1 --prompt-tokens 2 --new-tokens 2 --rounds 1"},
      {"bench mask", ""},
      {"bench experts", " --trace " + file("routes") + " --gib 0.01"},
      {"logits", " --tokens 1,2 --out " + file("l")},
      {"perplexity", text},
      {"quantize", " " + file("out") + " --scheme W4A16"},
      {"eval", text + " --base " + shell_quote(model())},
      {"pack", " " + file("packed")},
      {"tokenize", " -p abc"},
      {"detokenize", " --tokens 1,2"}};
  const CommandResult traced =
      run_tool("run " + shell_quote(model()) + " -p ab -n 2 --route-trace " + file("routes"));
  ASSERT_EQ(traced.status, 0) << traced.err;
  std::set<std::string> commands;
  gather(make_tool(nullptr), commands);
  for (const auto& [name, words] : arguments)
    EXPECT_TRUE(commands.contains(name)) << name << " takes no folder";
  for (const std::string& name : commands) {
    SCOPED_TRACE(name);
    const auto with = arguments.find(name);
    ASSERT_NE(with, arguments.end()) << "this test has no arguments for it";
    if (name == "serve") {
      const test::Served served(shell_quote(model()));
      EXPECT_NE(served.ask(test::get("/v1/models")).body.find("\"shown\""), std::string::npos);
      continue;
    }
    const CommandResult r = run_tool(name + " " + shell_quote(model()) + with->second);
    if (name == "quantize") {
      EXPECT_EQ(r.status, 1);
      EXPECT_NE(r.err.find("is a GGUF file, quantized once already"), std::string::npos) << r.err;
    } else {
      EXPECT_EQ(r.status, 0) << r.err;
    }
  }
}

TEST(GgufCli, EveryFormOfAModelIsTaken) {
  const test::TempDir dir;
  const fs::path one = made("good") / "qwen3moe.gguf";
  const auto part = [](int i) { return "qwen3moe-0000" + std::to_string(i) + "-of-00003.gguf"; };
  // The hub's cache: names are links to files that are named by their hash.
  const fs::path snapshot = dir / "models--a--b/snapshots/1", blobs = dir / "models--a--b/blobs";
  fs::create_directories(snapshot);
  fs::create_directories(blobs);
  fs::create_directories(dir / "folder");
  for (int i = 1; i <= 3; ++i) {
    fs::copy(made("split") / part(i), blobs / std::to_string(i));
    fs::create_symlink("../../blobs/" + std::to_string(i), snapshot / part(i));
    fs::create_symlink(blobs / std::to_string(i), dir / "folder" / part(i));
  }
  fs::copy(one, dir / "sha256-0123");
  const auto logits_of = [&](const fs::path& path, const std::string& options = "") {
    const fs::path out = dir / "l";
    const CommandResult r =
        run_tool("logits " + shell_quote(path.string()) + " --tokens 1,2,3 --out " +
                 shell_quote(out.string()) + options);
    return r.status == 0 ? test::read_file(out) : r.err;
  };
  const std::string want = logits_of(one);
  for (const fs::path& path :
       {made("split"), made("split") / part(1), made("split") / part(2), made("split") / part(3),
        snapshot, snapshot / part(2), dir / "folder", dir / "sha256-0123"})
    EXPECT_TRUE(logits_of(path) == want) << path;
  // Links out of the folder are refused where the user asks for it, those of the cache are not.
  EXPECT_TRUE(logits_of(snapshot / part(2), " --no-follow") == want);
  EXPECT_NE(logits_of(dir / "folder" / part(2), " --no-follow").find("outside the folder"),
            std::string::npos);
  // C and C++ load a part and a whole file.
  EXPECT_EQ(llm::Model::load((made("split") / part(2)).string()).vocab(), 32u);
  const std::unique_ptr<moebius_model, void (*)(moebius_model*)> c(
      moebius_model_load(one.c_str(), nullptr), moebius_model_free);
  EXPECT_NE(c, nullptr) << moebius_last_error();
}

TEST(GgufCli, AChatTemplateOfOnesOwn) {
  const test::TempDir dir;
  const std::string own = shell_quote((dir / "own.jinja").string());
  test::write_file(dir / "own.jinja", "{% for m in messages %}c{{ m.content }}c{% endfor %}");
  const auto ids = [&](const std::string& folder, const std::string& options) {
    const CommandResult r = run_tool("run " + folder + " -p ab -n 1 --json " + options);
    EXPECT_EQ(r.status, 0) << r.err;
    return r.status == 0 ? parse_json(r.out, "run").find("prompt_ids")->dump() : r.err;
  };
  const std::string file = shell_quote(model());
  EXPECT_EQ(ids(file, "--chat"), "[26]");
  EXPECT_EQ(ids(file, "--chat-template " + own), "[2, 27]");  // c, abc
  const std::string bundled = ids("", "--chat-template " + own);
  EXPECT_NE(bundled, ids("", "--chat"));
  EXPECT_EQ(
      bundled,
      parse_json(run_tool("tokenize -p cabc --no-special --json").out, "t").find("ids")->dump());
  const test::Served served(file + " --chat-template " + own);
  const std::string asked =
      served
          .ask(test::post("/v1/chat/completions",
                          R"({"messages": [{"role": "user", "content": "ab"}], "max_tokens": 1})"))
          .body;
  EXPECT_NE(asked.find("\"prompt_tokens\":2"), std::string::npos) << asked;
  const CommandResult missing = run_tool("run " + file + " -p a --chat-template /no/such.jinja");
  EXPECT_EQ(missing.status, 2);
  EXPECT_NE(missing.err.find("/no/such.jinja"), std::string::npos) << missing.err;
  const CommandResult two =
      run_tool("serve --model a=" + file + " --model b=" + file + " --chat-template " + own);
  EXPECT_EQ(two.status, 2);
  EXPECT_NE(two.err.find("--chat-template is for one model"), std::string::npos) << two.err;
}

TEST(GgufCli, AFileThatChangedIsPackedAnew) {
  const test::TempDir dir;
  const fs::path file = dir / "m.gguf";
  std::string bytes = test::read_file(made("odd") / "shown.gguf");
  const auto logits = [&](const std::string& options) {
    const CommandResult r =
        run_tool("logits " + shell_quote(file.string()) + " --tokens 1,2,3 --out " +
                 shell_quote((dir / "l").string()) + options);
    EXPECT_EQ(r.status, 0) << r.err;
    return test::read_file(dir / "l");
  };
  const std::string packed = " --pack-dir " + shell_quote((dir / "packed").string());
  const auto files = [&] {
    return std::distance(fs::directory_iterator(dir / "packed"), fs::directory_iterator());
  };
  test::write_file(file, bytes);
  const std::string first = logits(packed);
  EXPECT_EQ(first, logits(""));
  const auto before = files();
  EXPECT_EQ(first, logits(packed));
  EXPECT_EQ(files(), before);
  // Another file of the same size under the same name: numbers in its middle differ.
  const size_t middle = bytes.size() / 2;
  for (size_t i = 0; i < 4096; i += 2) bytes[middle + i] = static_cast<char>(bytes[middle + i] + 1);
  test::write_file(file, bytes);
  const std::string second = logits(packed);
  EXPECT_NE(second, first);
  EXPECT_EQ(second, logits(""));
}

TEST(GgufCli, InspectSaysWhoMadeItOfWhat) {
  const CommandResult r = run_tool("inspect " + shell_quote(model()));
  ASSERT_EQ(r.status, 0) << r.err;
  for (const char* words :
       {"version 3 in 1 file", "quantized_by somebody", "file small.imatrix", "temp 0.6",
        "gpt2, pre qwen2", "Q8_0", "BF16", "chat template", " of the file)", "type"})
    EXPECT_NE(r.out.find(words), std::string::npos) << words << "\n" << r.out;
  const Json j = parse_json(run_tool("inspect --json " + shell_quote(model())).out, "inspect");
  const Json& g = *j.find("gguf");
  EXPECT_EQ(g.find("bytes")->as_uint(), fs::file_size(model()));
  EXPECT_EQ(g.find("about")->find("name")->as_string(), "A small model");
  uint64_t packed = 0;
  for (const Json& t : g.find("types")->items()) packed += t.find("packed_bytes")->as_uint();
  EXPECT_GT(packed, 0u);
  EXPECT_LE(packed, j.find("packed_bytes")->as_uint());
  EXPECT_EQ(j.find("chat_template")->as_string(), "tokenizer.chat_template");
  EXPECT_EQ(parse_json(run_tool("inspect --json").out, "inspect").find("gguf"), nullptr);
}

TEST(GgufCli, FilesBesideTheModelAreNamed) {
  const test::TempDir dir;
  fs::copy(made("good") / "qwen3moe.gguf", dir / "a.gguf");
  fs::copy(made("bad") / "type_mmproj.gguf", dir / "mmproj-a.gguf");
  test::write_file(dir / "config.json", "{}");
  const auto shown = [&](const fs::path& path) {
    const CommandResult r = run_tool("inspect --json " + shell_quote(path.string()));
    EXPECT_EQ(r.status, 0) << r.err;
    return parse_json(r.out, "inspect").find("run_notes")->dump();
  };
  for (const fs::path& path : {dir.path(), dir / "a.gguf"})
    EXPECT_NE(shown(path).find("config.json beside the GGUF file is not read"), std::string::npos);
  EXPECT_NE(shown(dir.path()).find("mmproj-a.gguf is not read: it holds no model"),
            std::string::npos);
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy(test::test_data_dir() / "golden/qwen3moe-dense" / name, dir / name,
             fs::copy_options::overwrite_existing);
  EXPECT_NE(shown(dir.path()).find("a.gguf is not read: the safetensors files are"),
            std::string::npos);
}

}  // namespace
}  // namespace moebius::gguf_cli_test
