// SPDX-License-Identifier: Apache-2.0
// What happens on a terminal: bars that leave results alone, Ctrl-C as a real signal, conversations
// with editing and history.
#include <gtest/gtest.h>
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "apps/chat/terminal.h"
#include "base/error.h"
#include "base/json.h"
#include "cli/pty_util.h"
#include "unit/test_util.h"

namespace moebius::terminal_test {
namespace {

using test::kCtrlC;
using test::kCtrlD;
using test::shell_quote;
using test::TempDir;
using test::Terminal;

std::string eval_text() {
  return shell_quote((test::source_dir() / "models/eval/val.bin").string());
}

size_t lines_with(const Terminal& t, std::string_view text) {
  size_t n = 0;
  for (const std::string& line : t.screen()) n += line.find(text) != std::string::npos;
  return n;
}

bool has_line(const Terminal& t, std::string_view begin, std::string_view end) {
  const std::vector<std::string> lines = t.screen();
  return std::any_of(lines.begin(), lines.end(), [&](const std::string& line) {
    return line.starts_with(begin) && line.ends_with(end);
  });
}

// A folder that takes seconds to load and no room on disk: zeros that were never written.
void write_large_folder(const TempDir& dir) {
  constexpr uint64_t kHidden = 64, kInner = 4 << 20, kVocab = 32;
  test::write_file(dir / "config.json",
                   R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
    "dtype": "bfloat16", "head_dim": 16, "hidden_act": "silu", "hidden_size": 64,
    "intermediate_size": 4194304, "max_position_embeddings": 256, "num_attention_heads": 4,
    "num_hidden_layers": 1, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
    "rope_theta": 10000.0, "tie_word_embeddings": false, "vocab_size": 32})");
  std::string header;
  uint64_t offset = 0;
  const auto add = [&](const std::string& name, std::vector<uint64_t> shape) {
    uint64_t count = 1;
    std::string dims;
    for (const uint64_t n : shape) {
      count *= n;
      dims += (dims.empty() ? "" : ",") + std::to_string(n);
    }
    header += (header.empty() ? "{\"" : ",\"") + name + R"(":{"dtype":"BF16","shape":[)" + dims +
              R"(],"data_offsets":[)" + std::to_string(offset) + "," +
              std::to_string(offset + 2 * count) + "]}";
    offset += 2 * count;
  };
  const std::string layer = "model.layers.0.";
  add("model.embed_tokens.weight", {kVocab, kHidden});
  add("lm_head.weight", {kVocab, kHidden});
  add("model.norm.weight", {kHidden});
  for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
    add(layer + norm + ".weight", {kHidden});
  for (const char* name : {"q_proj", "o_proj"})
    add(layer + "self_attn." + name + ".weight", {64, kHidden});
  for (const char* name : {"k_proj", "v_proj"})
    add(layer + "self_attn." + name + ".weight", {32, kHidden});
  for (const char* name : {"gate_proj", "up_proj"})
    add(layer + "mlp." + name + ".weight", {kInner, kHidden});
  add(layer + "mlp.down_proj.weight", {kHidden, kInner});
  header += "}";
  const uint64_t length = header.size();
  std::string begin(reinterpret_cast<const char*>(&length), 8);
  test::write_file(dir / "model.safetensors", begin + header);
  std::filesystem::resize_file(dir / "model.safetensors", 8 + length + offset);
}

TEST(Terminal, CtrlCEndsLoading) {
  const TempDir dir;
  write_large_folder(dir);
  const std::string folder = shell_quote(dir.path().string());
  for (const std::string& command : {"run " + folder + " --tokens 1,2", "bench model " + folder}) {
    bool in_time = false;  // a busy machine may load all before it reads the key
    std::string transcript;
    for (int n = 0; n < 5 && !in_time; ++n) {
      Terminal t(command + " --threads 1");
      ASSERT_TRUE(t.see("loading [")) << t.transcript();
      t.type(kCtrlC);
      EXPECT_EQ(t.finish(), 130) << t.transcript();
      in_time = has_line(t, "moebius: interrupted while loading", "");
      transcript = t.transcript();
    }
    EXPECT_TRUE(in_time) << transcript;
  }
}

// What a bar of 1000 parts ends as, when 990 were told and the work ended, or failed.
std::string last_bar(bool fails) {
  int descriptor = -1;
  const winsize size{24, 80, 0, 0};
  const pid_t child = forkpty(&descriptor, nullptr, nullptr, &size);
  if (child == 0) {
    try {
      Progress bar("parts", 1000, false);
      usleep(120'000);
      bar.advance(990);
      if (fails) throw Error("no");
      bar.finish();
    } catch (const Error&) {
    }
    _exit(0);
  }
  std::string all;
  char buffer[4096];
  for (ssize_t n; (n = read(descriptor, buffer, sizeof(buffer))) > 0;)
    all.append(buffer, static_cast<size_t>(n));
  waitpid(child, nullptr, 0);
  close(descriptor);
  return all.substr(all.find_last_of('\r', all.size() - 3) + 1);
}

TEST(Terminal, ABarEndsFullWhereTheWorkIsDone) {
  const std::string done = last_bar(false), failed = last_bar(true);
  EXPECT_TRUE(done.starts_with("parts [========================] 1000 of 1000, ")) << done;
  EXPECT_TRUE(failed.starts_with("parts [======================= ] 990 of 1000, ")) << failed;
}

TEST(Terminal, CtrlCStopsAnAnswer) {
  Terminal t("run -p 'The sea' -n -1 --ignore-eos --json");
  ASSERT_TRUE(t.see("prompt [")) << t.transcript();
  t.type(kCtrlC);
  EXPECT_EQ(t.finish(), 130);
  EXPECT_NE(t.transcript().find(R"("finish": "interrupted")"), std::string::npos) << t.transcript();
}

TEST(Terminal, BarsLeaveResultsAlone) {
  {
    Terminal t("perplexity --ctx 64 --windows 100 --tokens-file " + eval_text());
    EXPECT_EQ(t.finish(), 0);
    ASSERT_NE(t.transcript().find("perplexity ["), std::string::npos) << t.transcript();
    EXPECT_TRUE(has_line(t, "loss ", "tokens 6400")) << t.transcript();
    EXPECT_FALSE(t.screen()[t.screen().size() - 2].starts_with("perplexity [")) << t.transcript();
  }
  Terminal t("bench model --prompts 16 --batches 1,2 --seconds 0.3 --json");
  EXPECT_EQ(t.finish(), 0);
  ASSERT_NE(t.transcript().find("measuring ["), std::string::npos) << t.transcript();
  EXPECT_EQ(lines_with(t, "measuring ["), 1u) << t.transcript();
  EXPECT_TRUE(has_line(t, "measuring [", " s")) << t.transcript();
  EXPECT_TRUE(has_line(t, "{", "}")) << t.transcript();
}

TEST(Terminal, ThePromptHasItsOwnBar) {
  const TempDir dir;
  std::string text;
  for (int i = 0; i < 300; ++i) text += "The sea was calm. ";
  test::write_file(dir / "prompt", text);
  Terminal t("run -f " + shell_quote((dir / "prompt").string()) + " -n 2 --temp 0 --ignore-eos");
  EXPECT_EQ(t.finish(), 0);
  EXPECT_NE(t.transcript().find("prompt [  "), std::string::npos) << t.transcript();
  EXPECT_EQ(lines_with(t, "prompt ["), 0u) << t.transcript();  // the answer's line is free
}

Json saved_messages(const std::filesystem::path& file) {
  return parse_json(test::read_file(file), "saved messages");
}

std::string content(const Json& messages, size_t i) {
  return messages.items().at(i).find("content")->as_string();
}

TEST(Terminal, LinesAreEditedAndRemembered) {
  const TempDir dir;
  Terminal t("run -i -n 4 --temp 0 --ignore-eos");
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type(
      "Helo w\xc3\xb6rld\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D\x1b[D"
      "l\r");  // to the o, an l before it
  ASSERT_TRUE(t.see_prompt("\n> ")) << t.transcript();
  t.type("\x1b[A\r");  // the line before
  ASSERT_TRUE(t.see_prompt("\n> ")) << t.transcript();
  t.type("/save " + (dir / "said").string() + "\r");
  ASSERT_TRUE(t.see("(4 messages saved)")) << t.transcript();
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();  // the editor reads again
  t.type(kCtrlD);
  EXPECT_EQ(t.finish(), 0) << t.transcript();
  const Json said = saved_messages(dir / "said");
  EXPECT_EQ(content(said, 0), "Hello w\xc3\xb6rld") << t.transcript();
  EXPECT_EQ(content(said, 2), content(said, 0));
}

TEST(Terminal, CtrlCStopsTheAnswerAndThenLeaves) {
  Terminal t("run -i -n -1 --temp 0 --ignore-eos");
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type("Good morning\r");
  ASSERT_TRUE(t.see("prompt [")) << t.transcript();
  t.type(kCtrlC);
  ASSERT_TRUE(t.see("(stopped)")) << t.transcript();
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type(kCtrlC);
  EXPECT_EQ(t.finish(), 130) << t.transcript();
}

TEST(Terminal, AFullContextKeepsTheConversation) {
  Terminal t("run -i -n -1 -c 64 --temp 0 --ignore-eos");
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type("Good morning\r");
  ASSERT_TRUE(t.see("the context is full")) << t.transcript();
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type("And then?\r");
  ASSERT_TRUE(t.see("the context is full")) << t.transcript();
  EXPECT_NE(t.transcript().find("/reset"), std::string::npos);
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type("/reset\r");
  ASSERT_TRUE(t.see("(forgotten)")) << t.transcript();
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type("Good evening\r");
  ASSERT_TRUE(t.see("the context is full")) << t.transcript();
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type(kCtrlD);
  EXPECT_EQ(t.finish(), 0) << t.transcript();
}

TEST(Conversation, MayBeginWithAMessage) {
  const TempDir dir;
  test::write_file(dir / "typed", "/save " + (dir / "m.json").string() + "\n");
  const test::CommandResult r = test::run_tool("run -i -p Hello -n 2 --temp 0 --ignore-eos <" +
                                               shell_quote((dir / "typed").string()));
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_FALSE(r.out.empty());
  const Json said = saved_messages(dir / "m.json");
  ASSERT_EQ(said.items().size(), 2u);
  EXPECT_EQ(content(said, 0), "Hello");
  const test::CommandResult again =
      test::run_tool("run -n 0 --json --messages " + shell_quote((dir / "m.json").string()));
  EXPECT_EQ(again.status, 0) << again.err;  // what was saved can be given
}

// Without a terminal, the same commands and the same several lines.
TEST(Conversation, CommandsAndSeveralLines) {
  const TempDir dir;
  const std::string file = (dir / "m.json").string();
  test::write_file(dir / "typed",
                   "/system Be brief.\none \\\ntwo\n\"\"\"\nthree\n\nfour\"\"\"\n//slash\n/save " +
                       file + "\n/stats\n/nonsense\n/save\n/load /does/not/exist\n/reset\n/save " +
                       file + "2\n/load " + file + "\n/system\n/save " + file + "3\n/help\n");
  const test::CommandResult r =
      test::run_tool("run -i -n 2 --temp 0 --ignore-eos <" + shell_quote((dir / "typed").string()));
  ASSERT_EQ(r.status, 0) << r.err;
  const Json said = saved_messages(file);
  ASSERT_EQ(said.items().size(), 7u) << r.err;
  EXPECT_EQ(said.items()[0].find("role")->as_string(), "system");
  EXPECT_EQ(content(said, 0), "Be brief.");
  EXPECT_EQ(content(said, 1), "one \ntwo");
  EXPECT_EQ(said.items()[2].find("role")->as_string(), "assistant");
  EXPECT_EQ(content(said, 3), "three\n\nfour");
  EXPECT_EQ(content(said, 5), "/slash");
  EXPECT_EQ(saved_messages(file + "2").items().size(), 1u);  // the system message stays
  EXPECT_EQ(saved_messages(file + "3").items().size(), 6u);
  for (const char* part : {"prompt tokens", "/nonsense is no command", "/save needs the name",
                           "/does/not/exist", "(forgotten)", "(7 messages loaded)", "/reset  "})
    EXPECT_NE(r.err.find(part), std::string::npos) << part << "\n" << r.err;
  EXPECT_EQ(r.err.find("> "), std::string::npos) << r.err;  // nobody reads a prompt
}

}  // namespace
}  // namespace moebius::terminal_test
