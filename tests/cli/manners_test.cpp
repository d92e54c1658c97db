// SPDX-License-Identifier: Apache-2.0
// How the commands treat the person who types them: nothing that cannot be printed ends a run, what
// is wrong is said before weights are loaded, a terminal without a prompt opens a chat, and messages
// name what the user named.
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>

#include "apps/cli/options.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "base/json.h"
#include "checkpoint/summary.h"
#include "cli/pty_util.h"
#include "device/cpu/layer_plan.h"
#include "kernels/list.h"
#include "runtime/thread_pool.h"
#include "unit/test_util.h"

namespace moebius::manners_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
using test::TempDir;
using test::Terminal;
namespace fs = std::filesystem;

bool says(const CommandResult& r, std::string_view words) {
  return r.err.find(words) != std::string::npos;
}

// The bundled model by links, without some of its files.
void link_bundled(const fs::path& to, const std::vector<std::string>& without) {
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(test::bundled_model_dir())) {
    const std::string name = entry.path().filename().string();
    if (std::find(without.begin(), without.end(), name) == without.end())
      fs::create_symlink(fs::absolute(entry.path()), to / name);
  }
}

// A copy of a golden folder whose config.json has one text replaced by another.
void copy_with_config(const char* name, const fs::path& to,
                      const std::vector<std::pair<std::string, std::string>>& changes) {
  fs::copy(test::test_data_dir() / "golden" / name, to);
  std::string config = test::read_file(to / "config.json");
  for (const auto& [from, into] : changes) {
    ASSERT_NE(config.find(from), std::string::npos) << from;
    config.replace(config.find(from), from.size(), into);
  }
  fs::remove(to / "config.json");
  test::write_file(to / "config.json", config);
}

TEST(Manners, StandardErrorMayBeClosed) {
  const TempDir dir;
  test::write_file(dir / "said", "Hello\n/stats\n/nonsense\n");
  const std::string said = shell_quote((dir / "said").string());
  for (const std::string& args :
       {std::string("run -p 'The sea' -n 2 -c 9000"), "run -i -n 2 <" + said,
        std::string("inspect"), std::string("verify"), std::string("explain"),
        std::string("completion bash"), std::string("bench roof --threads 1")}) {
    const CommandResult r = run_tool(args + " 2>&-");
    EXPECT_EQ(r.status, 0) << args;
    EXPECT_FALSE(r.out.empty()) << args;
  }
  EXPECT_EQ(run_tool("run /does/not/exist -p x 2>&-").status, 1);
  EXPECT_EQ(run_tool("serve /does/not/exist 2>&-").status, 1);
  EXPECT_EQ(run_tool("run --nonsense 2>&-").status, 2);
}

TEST(Manners, ATerminalWithoutAPromptOpensAChat) {
  Terminal t("run --temp 0 --ignore-eos -n 4");
  ASSERT_TRUE(t.see("/exit")) << t.transcript();
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type("Hello\r");
  ASSERT_TRUE(t.see("(cut off after 4 tokens: the limit of -n)")) << t.transcript();
  ASSERT_TRUE(t.see_prompt("> ")) << t.transcript();
  t.type("/exit\r");
  EXPECT_EQ(t.finish(), 0) << t.transcript();
}

TEST(Manners, ATerminalWithoutATemplateIsToldWhatIsAwaited) {
  const TempDir dir;
  link_bundled(dir / "plain", {"tokenizer_config.json"});
  Terminal t("run " + shell_quote((dir / "plain").string()) + " --temp 0 -n 2 --ignore-eos");
  ASSERT_TRUE(t.see("type the prompt, then end it with Ctrl-D")) << t.transcript();
  t.type("The sea\r");
  t.type(test::kCtrlD);
  EXPECT_EQ(t.finish(), 0) << t.transcript();
  EXPECT_NE(t.transcript().find("2 new tokens"), std::string::npos) << t.transcript();
}

TEST(Manners, WordsThatLeaveAChat) {
  const TempDir dir;
  for (const char* word : {"/exit", "/quit", "/bye"}) {
    test::write_file(dir / (word + 1), std::string(word) + "\nHello\n");
    const CommandResult r = run_tool("run -i -n 2 <" + shell_quote((dir / (word + 1)).string()));
    EXPECT_EQ(r.status, 0) << word;
    EXPECT_EQ(r.out, "") << word;
    EXPECT_FALSE(says(r, "is no command")) << r.err;
  }
}

// A text is cut after 256 tokens, an answer of a chat is not.
TEST(Manners, AChatHasNoLimitOfTokens) {
  const auto tokens = [](const std::string& args) {
    const CommandResult r = run_tool("run --json --ignore-eos --temp 0 -c 400 -p Hello" + args);
    EXPECT_EQ(r.status, 0) << r.err;
    return parse_json(r.out, "run").find("tokens")->items().size();
  };
  EXPECT_EQ(tokens(""), 256u);
  EXPECT_GT(tokens(" --chat"), 300u);
  EXPECT_EQ(tokens(" --chat -n 5"), 5u);
}

// The folder has no weights at all: whoever gets there fails with 1.
TEST(Manners, OptionsAreCheckedBeforeWeights) {
  const TempDir dir;
  link_bundled(dir / "empty", {"model.safetensors"});
  link_bundled(dir / "plain", {"model.safetensors", "tokenizer_config.json"});
  const std::string empty = "run " + shell_quote((dir / "empty").string()) + " -p x ",
                    plain = "run " + shell_quote((dir / "plain").string());
  EXPECT_EQ(run_tool(empty).status, 1);
  for (const char* option : {"--temp -1", "--temp nan", "--top-p 7", "--top-k -3", "--min-p 2",
                             "--top-n-sigma 101", "--top-n-sigma nan", "--repetition-penalty 0",
                             "--presence-penalty 1000", "--frequency-penalty -101"}) {
    const CommandResult r = run_tool(empty + option);
    EXPECT_EQ(r.status, 2) << option << ": " << r.err;
    EXPECT_TRUE(says(r, "expected")) << r.err;
  }
  const CommandResult chat = run_tool(plain + " --chat -p x");
  EXPECT_EQ(chat.status, 2) << chat.err;
  EXPECT_TRUE(says(chat, "has no chat template")) << chat.err;
  const CommandResult messages =
      run_tool("run " + shell_quote((dir / "empty").string()) + " --messages /does/not/exist");
  EXPECT_EQ(messages.status, 2) << messages.err;
  const CommandResult alone = run_tool(empty + "--logprobs 3");
  EXPECT_EQ(alone.status, 2) << alone.err;
  EXPECT_TRUE(says(alone, "give --json too")) << alone.err;
  const CommandResult much = run_tool(empty + "--kv-gib 1000000");
  EXPECT_EQ(much.status, 1);
  EXPECT_TRUE(says(much, "--kv-gib 1000000: only ")) << much.err;
}

TEST(Manners, PipesAndStandardInputAreRead) {
  const TempDir dir;
  const std::string pipe = shell_quote((dir / "pipe").string());
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  test::write_file(dir / "text", "The sea\n");
  test::write_file(dir / "messages", R"([{"role": "user", "content": "Hi"}])");
  const auto ids = [&](const std::string& args) {
    const CommandResult r = run_tool("run -n 0 --json " + args);
    EXPECT_EQ(r.status, 0) << args << ": " << r.err;
    return r.status == 0 ? parse_json(r.out, "run").find("prompt_ids")->dump() : r.err;
  };
  const std::string plain = ids("-p 'The sea'");
  EXPECT_EQ(ids("-f - <" + shell_quote((dir / "text").string())), plain);
  EXPECT_EQ(ids("-f " + pipe + " & printf 'The sea' >" + pipe + "; wait $!"), plain);
  EXPECT_EQ(ids("--messages - <" + shell_quote((dir / "messages").string())), ids("--chat -p Hi"));
  const CommandResult tokens =
      run_tool("tokenize -f " + pipe + " & printf 'The sea' >" + pipe + "; wait $!");
  EXPECT_EQ(tokens.out, run_tool("tokenize -p 'The sea'").out);
  EXPECT_THROW(read_input(dir.path().string(), 100), Error);
  EXPECT_THROW(read_input("/dev/zero", 100), Error);
}

// A kernel that runs 16-bit weights alone: the quantized modules go to others.
TEST(Manners, AKernelIsUsedWhereItCan) {
  const Checkpoint checkpoint = Checkpoint::open(test::bundled_model_dir().string());
  Policy policy;
  policy.kernel = "arm_bf16/bf16";
  Policy lenient = policy;
  lenient.where_it_can = true;
  size_t with = 0, without = 0;
  for (const Module& m : checkpoint.modules()) {
    if (!has_product(checkpoint, m)) continue;
    const Problem problem = problem_of(m, {}, XType::kBf16);
    const bool dense = problem.scale_type == ScaleType::kNone;
    EXPECT_EQ(request_for(problem, lenient).kernel, dense ? policy.kernel : "") << m.name;
    EXPECT_EQ(request_for(problem, policy).kernel, policy.kernel) << m.name;
    ++(dense ? with : without);
  }
  EXPECT_GT(with, 0u);
  EXPECT_GT(without, 0u);
  // One of another CPU is refused without a word on what it runs.
  for (const char* name : {"arm_bf16/bf16", "x86_amx/bf16", "x86_avx512/bf16", "x86_avx2/bf16"}) {
    lenient.kernel = name;
    const auto& all = kernel_list();
    const auto kernel =
        std::find_if(all.begin(), all.end(), [&](const Kernel* k) { return title_of(*k) == name; });
    ASSERT_NE(kernel, all.end()) << name;
    std::string refusal;
    testing::internal::CaptureStderr();
    try {
      note_kernel(checkpoint, lenient, {}, XType::kBf16);
    } catch (const Error& e) {
      refusal = e.what();
    }
    const std::string said = testing::internal::GetCapturedStderr();
    if (missing_features(host_cpu(), (*kernel)->arch, (*kernel)->needs).empty()) {
      EXPECT_EQ(refusal, "");
      EXPECT_NE(said.find(fmt::format("--kernel {} runs 7 of 175", name)), std::string::npos)
          << said;
    } else {
      EXPECT_EQ(said, "");
      EXPECT_NE(refusal.find(" cannot be used ("), std::string::npos) << refusal;
    }
  }
  lenient.kernel = "arm_fhm/f16";
  EXPECT_THROW(note_kernel(checkpoint, lenient, {}, XType::kBf16), Error);
}

TEST(Manners, MoreThreadsThanCpusAndContextThanMemory) {
  const CommandResult r =
      run_tool("run -q -p x -n 1 -c 1000000000 -t " + std::to_string(available_cpus() + 1));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_TRUE(says(r, "this process may use ")) << r.err;
  EXPECT_TRUE(says(r, "--ctx 1000000000: the KV cache only has room for ")) << r.err;
  EXPECT_EQ(run_tool("run -q -p x -n 1 -t 1").err, "");
}

TEST(Manners, AnArchitectureThatCannotRunIsOneLine) {
  const TempDir dir;
  copy_with_config("qwen3moe-dense", dir / "other",
                   {{"\"qwen3_moe\"", "\"zzz_moe\""}, {"Qwen3MoeForCausalLM", "ZzzForCausalLM"}});
  const CommandResult r =
      run_tool("run " + shell_quote((dir / "other").string()) + " --tokens 1,2 -n 2");
  EXPECT_EQ(r.status, 1);
  EXPECT_TRUE(says(r, "ZzzForCausalLM")) << r.err;
  EXPECT_TRUE(says(r, "`moebius help architectures`")) << r.err;
  EXPECT_FALSE(says(r, "token ids")) << r.err;  // nothing about answers that will not come
  EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << r.err;
  const CommandResult list = run_tool("help architectures");
  EXPECT_EQ(list.status, 0);
  for (const char* name : {"qwen3_moe", "Qwen3-MoE", "deepseek", "GPT-OSS"})
    EXPECT_NE(list.out.find(name), std::string::npos) << name;
}

TEST(Manners, HelpArchitecturesTakesNothingBehindIt) {
  const CommandResult r = run_tool("help architectures qwen3_moe");
  EXPECT_EQ(r.status, 2);
  EXPECT_TRUE(says(r, "found 'qwen3_moe'")) << r.err;
  EXPECT_EQ(r.out, "");
}

TEST(Manners, ServeSaysThatItNeedsATokenizer) {
  const TempDir dir;
  link_bundled(dir / "mute", {"tokenizer.json"});
  const CommandResult r = run_tool("serve --port 0 " + shell_quote((dir / "mute").string()));
  EXPECT_EQ(r.status, 1);
  EXPECT_TRUE(says(r, "serve needs a tokenizer")) << r.err;
  EXPECT_FALSE(says(r, "token ids work")) << r.err;
  EXPECT_EQ(r.out, "");  // no address of a server that cannot be
}

TEST(Manners, InspectNamesTheQuantizationMethod) {
  const CommandResult r = run_tool(
      "inspect " +
      shell_quote((test::test_data_dir() / "golden/qwen3moe-modelopt-nvfp4-file").string()));
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find(", quantized with modelopt"), std::string::npos) << r.out;
}

TEST(Manners, FoldersThatAreNotThere) {
  for (const char* name : {"Qwen/Qwen3-30B-A3B", "qwen3:30b", "hf://nobody/nothing"}) {
    const CommandResult r = run_tool(std::string("run ") + name + " -p Hi");
    EXPECT_EQ(r.status, 1) << name;
    EXPECT_TRUE(says(r, "there is no such folder; `hf download ORG/NAME --local-dir DIR`"))
        << r.err;
    EXPECT_EQ(r.out, "") << name;
  }
  const CommandResult here = run_tool("inspect ./nope/");
  EXPECT_EQ(here.err, "moebius: ./nope/: there is no such folder\n");
}

TEST(Manners, ErrorsNameTheFileThatWasAskedFor) {
  const CommandResult r = run_tool("logits " + shell_quote(test::bundled_model_dir().string()) +
                                   " --tokens 1 --out /does/not/exist/logits");
  EXPECT_EQ(r.status, 1);
  EXPECT_TRUE(says(r, "/does/not/exist/logits: cannot create")) << r.err;
  EXPECT_FALSE(says(r, ".tmp")) << r.err;
}

TEST(Manners, OutputsMayBeLinksAndPipes) {
  const TempDir dir;
  const auto quoted = [&](const char* name) { return shell_quote((dir / name).string()); };
  const std::string logits =
      "logits " + shell_quote(test::bundled_model_dir().string()) + " --tokens 1 --out ";
  ASSERT_EQ(run_tool(logits + quoted("plain")).status, 0);
  const std::string bytes = test::read_file(dir / "plain");
  fs::create_symlink("real", dir / "link");
  EXPECT_EQ(run_tool(logits + quoted("link")).status, 0);
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  EXPECT_EQ(test::read_file(dir / "real"), bytes);
  const CommandResult piped = run_tool(
      logits + quoted("pipe") + " & cat " + quoted("pipe") + " > " + quoted("read") + "; wait $!",
      "mkfifo " + quoted("pipe") + ";");
  EXPECT_EQ(piped.status, 0) << piped.err;
  EXPECT_TRUE(fs::is_fifo(dir / "pipe"));
  EXPECT_EQ(test::read_file(dir / "read"), bytes);
  fs::create_directory(dir / "folder");
  const CommandResult folder = run_tool(logits + quoted("folder"));
  EXPECT_EQ(folder.status, 1);
  EXPECT_EQ(folder.err,
            "moebius: " + (dir / "folder").string() + ": is a folder; expected a file to write\n");
  test::write_file(dir / "talk", "/save " + (dir / "said").string() + "\n/save " +
                                     (dir / "folder").string() + "\n");
  fs::create_symlink("real", dir / "said");
  const CommandResult talk = run_tool("run -i < " + quoted("talk"));
  EXPECT_EQ(talk.status, 0) << talk.err;
  EXPECT_TRUE(says(talk, "folder: is a folder; expected a file to write")) << talk.err;
  EXPECT_TRUE(fs::is_symlink(dir / "said"));
  EXPECT_EQ(test::read_file(dir / "real"), "[]\n");
}

TEST(Manners, OneOfAThingIsSingular) {
  EXPECT_EQ(counted(0, "token"), "0 tokens");
  EXPECT_EQ(counted(1, "token"), "1 token");
  EXPECT_EQ(counted(2, "token"), "2 tokens");
  const CommandResult r = run_tool("run --tokens 5 -n 1 --temp 0 --ignore-eos");
  EXPECT_TRUE(says(r, "; 1 prompt token at ")) << r.err;
  EXPECT_TRUE(says(r, ", 1 new token; ")) << r.err;
}

TEST(Manners, APromptHasOneNameInEveryCommand) {
  const std::string ids = run_tool("tokenize --prompt 'The sea'").out;
  EXPECT_FALSE(ids.empty());
  for (const char* name : {"-p", "--text"})
    EXPECT_EQ(run_tool(std::string("tokenize ") + name + " 'The sea'").out, ids);
  const TempDir dir;
  const std::string logits = "logits " + shell_quote(test::bundled_model_dir().string()) +
                             " --out " + shell_quote((dir / "l").string());
  for (const char* name : {"-p", "--prompt", "--text"})
    EXPECT_EQ(run_tool(logits + " " + name + " Hi").status, 0) << name;
  for (const char* name : {"--max-tokens", "-n", "--tokens-max"})
    EXPECT_TRUE(says(run_tool(std::string("run -p x ") + name + " 1"), "1 new token;")) << name;
}

}  // namespace
}  // namespace moebius::manners_test
