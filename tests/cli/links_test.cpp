// SPDX-License-Identifier: Apache-2.0
// Symbolic links in a folder that was named on the command line: files that lie elsewhere, the hub's
// cache, links that lead to nothing good. Every command.
#include <gtest/gtest.h>
#include <sys/stat.h>

#include "checkpoint/tensor_store.h"
#include "unit/test_util.h"

namespace moebius::links_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
namespace fs = std::filesystem;

// One quick call of each command that opens a folder; %s is the folder, %t a temporary folder.
constexpr const char* kCalls[] = {
    "inspect %s --json",
    "explain %s --json",
    "verify %s --module '*.0.self_attn.q_proj'",
    "apply %s model.layers.0.self_attn.q_proj --in %t/x --out %t/y",
    "bench linear %s --module model.layers.0.self_attn.q_proj --tokens 1 -t 1 --seconds 0 --json",
    "bench moe %s --tokens 1 -t 1 --seconds 0 --json",
    "bench model %s --prompts 4 --batches 1 -t 1 --seconds 0 --json",
    "logits %s --tokens 1,2 --out %t/l",
    "perplexity %s --tokens-file %t/tokens --ctx 4",
    "run %s -p 'The sea' -n 2 --temp 0",
    "tokenize %s -p 'The sea'",
    "detokenize %s --ids 5,6",
};

std::string call(const char* pattern, const fs::path& folder, const fs::path& temporary) {
  std::string out = pattern;
  for (size_t at; (at = out.find("%s")) != std::string::npos;)
    out.replace(at, 2, shell_quote(folder.string()));
  for (size_t at; (at = out.find("%t")) != std::string::npos;)
    out.replace(at, 2, temporary.string());
  return out;
}

// Inputs that the calls read.
void write_inputs(const fs::path& folder) {
  const TensorStore model =
      TensorStore::open_file((test::bundled_model_dir() / "model.safetensors").string());
  const size_t H = model.require("model.norm.weight").shape[0];
  const std::vector<float> x(H, 0.5f);
  const std::vector<TensorData> tensors{
      {"x", DType::kF32, {1, H}, {reinterpret_cast<const uint8_t*>(x.data()), H * 4}}};
  write_safetensors((folder / "x").string(), tensors);
  std::string tokens;
  for (int i = 1; i < 10; ++i) tokens += {static_cast<char>(i), 0};
  test::write_file(folder / "tokens", tokens);
}

TEST(Links, OutOfTheFolder) {
  const test::TempDir temporary, linked;
  write_inputs(temporary.path());
  for (const auto& entry : fs::directory_iterator(test::bundled_model_dir()))
    fs::create_symlink(fs::absolute(entry.path()), linked / entry.path().filename().string());
  for (const char* pattern : kCalls) {
    const CommandResult r = run_tool(call(pattern, linked.path(), temporary.path()));
    EXPECT_EQ(r.status, 0) << pattern << "\n" << r.err;
    const std::string strict = call(pattern, linked.path(), temporary.path()) + " --no-follow";
    const CommandResult refused = run_tool(strict);
    EXPECT_EQ(refused.status, 1) << strict << "\n" << refused.err;
    EXPECT_NE(refused.err.find("outside the folder"), std::string::npos) << refused.err;
    EXPECT_TRUE(refused.out.empty()) << refused.out;
  }
}

// An edited config beside linked weights, which is daily practice.
TEST(Links, WeightsBesideAnEditedConfig) {
  const test::TempDir linked;
  const fs::path model = test::bundled_model_dir();
  for (const char* name : {"config.json", "tokenizer.json"})
    fs::copy_file(model / name, linked / name);
  fs::create_symlink(fs::absolute(model / "model.safetensors"), linked / "model.safetensors");
  const std::string folder = shell_quote(linked.path().string());
  EXPECT_EQ(run_tool("run " + folder + " -p hi -n 1").status, 0);
  const CommandResult refused = run_tool("run " + folder + " -p hi -n 1 --no-follow");
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("model.safetensors: is a symbolic link to"), std::string::npos);
}

TEST(Links, HubCache) {
  const test::TempDir cache, temporary;
  write_inputs(temporary.path());
  const fs::path repository = cache / "models--a--b", snapshot = repository / "snapshots/0123abc";
  fs::create_directories(snapshot);
  fs::create_directories(repository / "blobs");
  int number = 0;
  for (const auto& entry : fs::directory_iterator(test::bundled_model_dir())) {
    const std::string blob = "b" + std::to_string(number++);
    fs::copy_file(entry.path(), repository / "blobs" / blob);
    fs::create_symlink("../../blobs/" + blob, snapshot / entry.path().filename());
  }
  for (const char* pattern : kCalls)
    for (const char* strict : {"", " --no-follow"}) {
      const CommandResult r = run_tool(call(pattern, snapshot, temporary.path()) + strict);
      EXPECT_EQ(r.status, 0) << pattern << strict << "\n" << r.err;
    }
  // The repository itself: the revision that refs/main names.
  const std::string whole = "run " + shell_quote(repository.string()) + " -p hi -n 1";
  const CommandResult unnamed = run_tool(whole);
  EXPECT_EQ(unnamed.status, 1);
  EXPECT_NE(unnamed.err.find("name one of the folders in"), std::string::npos) << unnamed.err;
  test::write_file(repository / "refs/main", "0123abc\n");
  const CommandResult named = run_tool(whole);
  EXPECT_EQ(named.status, 0) << named.err;
  EXPECT_NE(named.err.find("its revision 0123abc is used"), std::string::npos) << named.err;
}

// A sentence that names the file, and no hang.
TEST(Links, LeadingNowhere) {
  const test::TempDir dir, elsewhere;
  const fs::path model = test::bundled_model_dir();
  fs::create_directory(elsewhere / "folder");
  ASSERT_EQ(::mkfifo((elsewhere / "pipe").c_str(), 0600), 0);
  fs::create_symlink("loop", elsewhere / "loop");
  const std::pair<fs::path, const char*> targets[] = {
      {"nowhere", "is a symbolic link to 'nowhere', which does not exist"},
      {elsewhere / "loop", "Too many levels of symbolic links"},
      {elsewhere / "folder", "is a folder; expected a regular file"},
      {elsewhere / "pipe", "is a pipe; expected a regular file"},
  };
  const std::string folder = shell_quote(dir.path().string());
  for (const char* name :
       {"config.json", "model.safetensors", "tokenizer.json", "generation_config.json"}) {
    for (const auto& entry : fs::directory_iterator(model))
      if (!fs::exists(dir / entry.path().filename().string()))
        fs::copy_file(entry.path(), dir / entry.path().filename().string());
    for (const auto& [target, words] : targets) {
      fs::remove(dir / name);
      fs::create_symlink(target, dir / name);
      const CommandResult r = run_tool("run " + folder + " -p hi -n 1");
      EXPECT_EQ(r.status, 1) << name << " " << target;
      EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
      EXPECT_NE(r.err.find(name), std::string::npos) << r.err;
      EXPECT_TRUE(r.out.empty());
      const CommandResult looked = run_tool("inspect " + folder);  // may go on without a tokenizer
      EXPECT_LE(looked.status, 1) << name << " " << target << looked.err;
      EXPECT_EQ(looked.err.find("unexpected"), std::string::npos) << looked.err;
    }
    fs::remove(dir / name);
  }
  for (const auto& [target, words] : targets) {  // the folder itself
    const fs::path link = elsewhere / "link";
    fs::remove(link);
    fs::create_symlink(target, link);
    if (std::string_view(words).find("is a folder") != std::string_view::npos) continue;
    const CommandResult r = run_tool("inspect " + shell_quote(link.string()));
    EXPECT_EQ(r.status, 1);
    EXPECT_NE(r.err.find("link: "), std::string::npos) << r.err;
  }
}

}  // namespace
}  // namespace moebius::links_test
