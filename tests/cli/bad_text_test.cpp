// SPDX-License-Identifier: Apache-2.0
// Whole models given something wrong: a sentence on stderr that names it, exit code 1 (2 for the
// command line itself), nothing on stdout, no output file.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <optional>

#include "base/file.h"
#include "base/json.h"
#include "checkpoint/tensor_store.h"
#include "unit/test_util.h"

namespace moebius::bad_text_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
namespace fs = std::filesystem;

fs::path bundled() { return test::source_dir() / "models/moebius-tiny-w4a8"; }

// A copy of the bundled model whose files can be replaced.
class Folder {
 public:
  Folder() {
    for (const auto& entry : fs::directory_iterator(bundled()))
      fs::copy_file(entry.path(), dir_.path() / entry.path().filename());
  }
  void write(const char* name, const std::string& text) const {
    test::write_file(dir_ / name, text);
  }
  void remove(const char* name) const { fs::remove(dir_ / name); }
  std::string text(const char* name) const {
    return read_text_file((dir_ / name).string(), 1 << 24);
  }
  void set_template(const std::string& source) const {
    write("tokenizer_config.json", Json::object({{"chat_template", source}}).dump());
  }
  std::string quoted() const { return shell_quote(dir_.path().string()); }
  fs::path path(const char* name) const { return dir_ / name; }

 private:
  test::TempDir dir_;
};

// The command says `words` and does nothing else.
void refuses(const std::string& command, const char* words, int status = 1) {
  const CommandResult r = run_tool(command);
  EXPECT_EQ(r.status, status) << command << "\n" << r.err;
  EXPECT_TRUE(r.out.empty()) << command << "\n" << r.out;
  EXPECT_NE(r.err.find(words), std::string::npos) << command << "\n" << r.err;
}

TEST(BadText, Tokenizers) {
  const Folder f;
  const std::string whole = f.text("tokenizer.json"), run = "run " + f.quoted() + " -p hi -n 2";
  f.write("tokenizer.json", whole.substr(0, 1000));
  refuses(run, "tokenizer.json: malformed JSON");
  f.write("tokenizer.json", "");
  refuses(run, "tokenizer.json: malformed JSON");
  f.write("tokenizer.json", "{}");
  refuses(run, "tokenizer.model is missing");
  const std::string token =
      R"({"id":9096,"content":"<|big|>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true})";
  const size_t list = whole.find("\"added_tokens\"");
  ASSERT_NE(list, std::string::npos);
  std::string more = whole;
  more.insert(whole.find('[', list) + 1, token + ",");
  f.write("tokenizer.json", more);
  refuses(run, "token ids go up to 9096, but the model has 4096");
  f.remove("tokenizer.json");
  refuses(run, "text needs tokenizer.json");
  refuses("perplexity " + f.quoted() + " -f " + shell_quote(f.path("README.md").string()),
          "text needs tokenizer.json");
  refuses("tokenize " + f.quoted() + " -p hi", "text needs tokenizer.json");
}

// Runs a command as somebody to whom files of mode 0700 are closed; nothing where no such user can be
// had. Their owner loses access by mode 0.
std::optional<std::string> stranger() {
  if (geteuid() != 0) return "";
  const std::string prefix = "setpriv --reuid=65534 --regid=65534 --clear-groups";
  return run_tool("--version", prefix).status == 0 ? std::optional(prefix) : std::nullopt;
}

// What is wrong with a folder as a whole is said before text asks for its tokenizer.
TEST(BadText, FoldersThatHoldNoModel) {
  const test::TempDir dir;
  const std::string config = test::read_file(bundled() / "config.json");
  const auto refuses_all = [&](const char* name, const char* words) {
    const std::string folder = shell_quote((dir / name).string());
    const std::string text = shell_quote((bundled() / "README.md").string());
    for (const std::string& command :
         {"run " + folder + " -p hi", "run " + folder + " --chat -p hi", "serve --port 0 " + folder,
          "serve --port 0 --model m=" + folder, "perplexity " + folder + " -f " + text,
          "eval " + folder + " --base " + folder + " -f " + text,
          "logits " + folder + " --text hi --out " + shell_quote((dir / "l").string())})
      refuses(command, words);
  };
  test::write_file(dir / "gguf/model-Q4_K_M.gguf", "GGUF");
  refuses_all("gguf", "gguf/model-Q4_K_M.gguf: ");
  test::write_file(dir / "gguf/config.json", config);
  refuses_all("gguf", "gguf/model-Q4_K_M.gguf: ");
  test::write_file(dir / "bin/model-00001-of-00002.bin", "PK");
  refuses_all("bin", "this folder holds PyTorch files ('model-00001-of-00002.bin')");
  test::write_file(dir / "bin/config.json", config);
  refuses_all("bin", "found 'model-00001-of-00002.bin', but only safetensors files are read");
  test::write_file(dir / "config/config.json", config);
  refuses_all("config", "holds neither model.safetensors nor model.safetensors.index.json");
  fs::create_directory(dir / "empty");
  refuses_all("empty", "empty/config.json: no such file; the folder is empty");
  refuses("inspect " + shell_quote((dir / "empty").string()), "the folder is empty");
}

TEST(BadText, FoldersOfOtherUsers) {
  const std::optional<std::string> prefix = stranger();
  if (!prefix) GTEST_SKIP() << "no other user can be had (setpriv)";
  const test::TempDir dir;
  fs::permissions(dir.path(), fs::perms(0755));
  fs::create_directory(dir / "locked");
  for (const auto& entry : fs::directory_iterator(bundled()))
    fs::copy_file(entry.path(), dir / "locked" / entry.path().filename());
  fs::permissions(dir / "locked", prefix->empty() ? fs::perms::none : fs::perms::owner_all);
  const std::string folder = (dir / "locked").string(), quoted = shell_quote(folder);
  for (const char* command : {"run -p hi ", "inspect ", "serve --port 0 ", "tokenize -p hi "}) {
    const CommandResult r = run_tool(command + quoted, *prefix);
    EXPECT_EQ(r.status, 1) << command;
    EXPECT_EQ(r.err, "moebius: " + folder + ": cannot open: Permission denied\n") << command;
  }
  const CommandResult pack = run_tool("run -p hi -n 1 --pack-dir " + quoted + "/packs", *prefix);
  EXPECT_EQ(pack.status, 1) << pack.err;
  EXPECT_EQ(pack.err, "moebius: --pack-dir " + folder + "/packs: Permission denied\n");
  EXPECT_EQ(run_tool("run -q -p hi -n 1 --pack-dir " + quoted, *prefix).status, 0)
      << "a folder that cannot be written is no reason to stop";
  fs::permissions(dir / "locked", fs::perms::owner_all);
}

TEST(BadText, PointersOfGitLfs) {
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\n"
      "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  const Folder f;
  const std::string run = "run " + f.quoted() + " -p hi -n 2";
  f.write("model.safetensors", pointer);
  refuses(run, "model.safetensors: is a git-lfs pointer, not the file itself; run `git lfs pull`");
  refuses("inspect " + f.quoted(), "model.safetensors: is a git-lfs pointer");
  f.write("tokenizer.json", pointer);
  refuses(run, "tokenizer.json: is a git-lfs pointer");
  f.write("config.json", pointer);
  refuses("inspect " + f.quoted(), "config.json: is a git-lfs pointer");
  EXPECT_EQ(run_tool("tokenize -f " + shell_quote(f.path("config.json").string())).status, 0)
      << "a user's text may be one";
}

// Input that does not fit is refused before weights are read: nothing is packed.
TEST(BadText, InputIsJudgedBeforeTheWeightsAreRead) {
  const test::TempDir dir;
  const std::string packs = " --pack-dir " + shell_quote((dir / "packs").string());
  const std::string out = " --out " + shell_quote((dir / "l").string());
  const std::string model = shell_quote(bundled().string());
  const auto refuses_early = [&](const std::string& command, const char* words) {
    refuses(command + packs, words);
    EXPECT_FALSE(fs::exists(dir / "packs")) << command;
    fs::remove_all(dir / "packs");
  };
  refuses_early("run -p '' -n 2", "the prompt is empty");
  refuses_early("run --tokens '' -n 2", "the prompt is empty");
  refuses_early("run -p 'one two three four five six' -c 3",
                "tokens, but the context holds 3; shorten it or raise --ctx");
  refuses_early("run --chat -p 'one two three four five six' -c 3", "but the context holds 3");
  refuses_early("run --tokens 1,4096 -n 2", "token 4096, which is not in the vocabulary of 4096");
  refuses_early("logits " + model + " --tokens 1,4096" + out,
                "token 4096 is not in the vocabulary of 4096");
  test::write_file(dir / "t", std::string("\x01\x00\xff\xff", 4));
  const std::string file = " --ctx 1 --tokens-file " + shell_quote((dir / "t").string());
  refuses_early("perplexity" + file, "token 65535 is not in the vocabulary");
  refuses_early("eval " + model + " --base " + model + file,
                "token 65535 is not in the vocabulary");
}

TEST(BadText, TokenIds) {
  const test::TempDir dir;
  const std::string model = shell_quote(bundled().string()),
                    out = " --out " + shell_quote((dir / "l").string());
  refuses("logits " + model + " --tokens 1,4096" + out, "token 4096 is not in the vocabulary");
  refuses("logits " + model + " --tokens=-1" + out, "'-1' is not a list of token ids");
  refuses("logits " + model + " --tokens 99999999999" + out, "is not a list of token ids");
  refuses("logits " + model + " --tokens ''" + out, "no tokens were given");
  refuses("logits " + model + " --text ''" + out, "no tokens were given");
  EXPECT_FALSE(fs::exists(dir / "l"));
  test::write_file(dir / "t", std::string("\x01\x00\x02", 3));
  const std::string file = "perplexity --ctx 1 --tokens-file " + shell_quote((dir / "t").string());
  refuses(file, "has 3 bytes; expected a multiple of 2");
  test::write_file(dir / "t", std::string("\x01\x00\xff\xff", 4));
  refuses(file, "token 65535 is not in the vocabulary");
  test::write_file(dir / "t", std::string("\x01\x00", 2));
  refuses(file, "has 1 token; expected at least 2");
}

TEST(BadText, Templates) {
  const Folder f;
  const std::string chat = "run " + f.quoted() + " --chat -p hi -n 2";
  const auto with = [&](const char* source, const char* words) {
    f.set_template(source);
    refuses(chat, words);
  };
  with("{% for m in messages %}{{ m.content }}", "'endfor' is missing");
  with("a\n {{ x | frobnicate }}", "line 2, column 9: filter 'frobnicate' is not supported");
  with("{{ raise_exception('no such role') }}", "the template says: no such role");
  with("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "recurses too deeply");
  with("{% for i in range(100000) %}{% for j in range(100000) %}{% endfor %}{% endfor %}",
       "line 1");
  with("", "the prompt is empty");
  f.write("tokenizer_config.json", "{}");
  refuses(chat, "has no chat template", 2);
}

TEST(BadText, Prompts) {
  const test::TempDir dir;
  refuses("run -p '' -n 2", "the prompt is empty");
  refuses("run -n 2 < /dev/null", "the prompt is empty");
  refuses("run -f /does/not/exist", "/does/not/exist");
  std::string large;
  while (large.size() < 10'000'000) large += "The sea was calm and the wind blew softly. ";
  test::write_file(dir / "large", large);
  refuses("run -f " + shell_quote((dir / "large").string()), "but the context holds 2048");
  test::write_file(dir / "large", std::string(10'000'000, 'x'));
  refuses("run -f " + shell_quote((dir / "large").string()), "but the context holds 2048");
  refuses("run -p 'a few words of text' --ctx 3", "but the context holds 3");
  refuses("run -p hi -n -5", "--max-tokens", 2);
  refuses("run -p hi --ctx -1", "--ctx", 2);
  refuses("run -p hi --temp nan", "temperature is nan", 2);
  refuses("run -p hi --top-k -3", "top_k is -3", 2);
  std::string bytes;  // invalid UTF-8 and NUL are text too
  for (int i = 0; i < 256; ++i) bytes += static_cast<char>(i);
  test::write_file(dir / "bytes", bytes);
  EXPECT_EQ(run_tool("run -n 2 -f " + shell_quote((dir / "bytes").string())).status, 0);
}

TEST(BadText, GenerationConfigs) {
  const Folder f;
  const std::string run = "run " + f.quoted() + " -p hi -n 2";
  const auto with = [&](const char* eos, const char* words) {
    f.write("generation_config.json", std::string("{\"eos_token_id\":") + eos + "}");
    refuses(run, words);
  };
  with("\"x\"", "eos_token_id holds \"x\"");
  with("[4092,99999]", "eos_token_id holds 99999, but the vocabulary has 4096");
  with("-1", "eos_token_id holds -1");
  with("[[1]]", "eos_token_id holds an array");
  with("1.5", "eos_token_id holds 1.5");
  f.write("generation_config.json", "{bad");
  refuses(run, "generation_config.json: malformed JSON");
  f.write("generation_config.json", R"({"do_sample":true,"temperature":"hot"})");
  refuses(run, "temperature is \"hot\"");
  for (const char* good : {"{\"eos_token_id\":[]}", "{\"eos_token_id\":null}", "{}"}) {
    f.write("generation_config.json", good);
    EXPECT_EQ(run_tool(run).status, 0) << good;
  }
}

TEST(BadText, NanLogits) {
  const Folder f;
  {
    const TensorStore store = TensorStore::open_file((bundled() / "model.safetensors").string());
    std::vector<std::vector<uint8_t>> memory;
    std::vector<TensorData> tensors;
    for (const TensorInfo& t : store.tensors()) {
      memory.emplace_back(t.bytes);
      store.read(t, 0, memory.back());
      if (t.name == "model.norm.weight") std::memset(memory.back().data(), 0xff, 2);  // a NaN
    }
    for (size_t i = 0; i < memory.size(); ++i) {
      const TensorInfo& t = store.tensors()[i];
      tensors.push_back({std::string(t.name), t.dtype, t.shape, memory[i]});
    }
    write_safetensors(f.path("model.safetensors").string(), tensors);
  }
  const std::string eval = shell_quote((test::source_dir() / "models/eval/val.bin").string());
  refuses("run " + f.quoted() + " -p hi -n 2", "no finite logit");
  const CommandResult json = run_tool("run " + f.quoted() + " -p hi -n 2 --temp 0 --json");
  EXPECT_EQ(json.status, 1);
  const Json said = parse_json(json.out, "run");  // what there is, and why there is no more
  EXPECT_EQ(said.find("finish")->as_string(), "error");
  EXPECT_NE(said.find("error")->as_string().find("no finite logit"), std::string::npos);
  EXPECT_NE(json.err.find("no finite logit"), std::string::npos);
  refuses("perplexity " + f.quoted() + " --windows 1 --ctx 32 --tokens-file " + eval,
          "the weights or the input are broken");
  refuses("logits " + f.quoted() + " --tokens 1,2 --out " + shell_quote(f.path("l").string()),
          "at position 0 is nan");
  EXPECT_FALSE(fs::exists(f.path("l")));
}

}  // namespace
}  // namespace moebius::bad_text_test
