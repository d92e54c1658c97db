// SPDX-License-Identifier: Apache-2.0
// The contract of run and perplexity: limits and their reasons, keys of the JSON, other sources of
// prompts, comparison with another folder.
#include <gtest/gtest.h>

#include <cctype>
#include <cmath>
#include <cstring>

#include "apps/perplexity.h"
#include "base/json.h"
#include "checkpoint/formats/format.h"
#include "checkpoint/tensor_store.h"
#include "unit/test_util.h"

namespace moebius::run_test {
namespace {

using test::CommandResult;
using test::run_tool;
using test::shell_quote;
using test::TempDir;
namespace fs = std::filesystem;

std::string golden_folder(const char* name) {
  return shell_quote((test::test_data_dir() / "golden" / name).string());
}

Json run_json(const std::string& args) {
  const CommandResult r = run_tool("run --json " + args);
  EXPECT_EQ(r.status, 0) << r.err;
  return r.status == 0 ? parse_json(r.out, "run") : Json::object();
}

size_t count(const Json& j, const char* key) { return j.find(key)->items().size(); }
std::string word(const Json& j, const char* key) { return j.find(key)->as_string(); }

// An int8 copy of the output projection finds the tokens that the projection alone finds.
TEST(Run, AnInt8CopyDrawsTheSameTokens) {
  for (const std::string sampling :
       {"--temp 0", "--temp 0.9 --top-k 20 --seed 7", "--temp 1 --top-k 32 --top-p 0.8 --seed 3",
        "--temp 0 --repetition-penalty 1.3 --presence-penalty 0.4",
        "--temp 0.7 --top-k 8 --regex '[a-z ]{20,40}'"}) {
    const std::string base = "-p 'The sea' -n 24 " + sampling + " --head-dtype ";
    const Json copied = run_json(base + "copy"), declared = run_json(base + "declared");
    EXPECT_GT(count(copied, "tokens"), 8u);
    EXPECT_EQ(copied.find("tokens")->dump(), declared.find("tokens")->dump()) << sampling;
  }
  run_json("-p 'The sea' -n 4 --temp 0 --head-dtype int8");
  const CommandResult exact = run_tool("run -p x -n 1 --head-dtype int8 --policy exact");
  EXPECT_NE(exact.err.find("int8 output weights on request are approximate"), std::string::npos)
      << exact.err;
  const CommandResult explained = run_tool("explain --why --head-dtype int8 " +
                                           shell_quote(test::bundled_model_dir().string()));
  EXPECT_NE(explained.out.find("int8 weights per output on request"), std::string::npos);
}

TEST(Run, LimitsAndTheirReasons) {
  const std::string base = "-p 'The sea' --temp 0 --ignore-eos ";
  const Json none = run_json(base + "-n 0");
  EXPECT_EQ(count(none, "tokens"), 0u);
  EXPECT_EQ(word(none, "text"), "");
  EXPECT_EQ(word(none, "finish"), "length");
  EXPECT_EQ(run_tool("run " + base + "-n 0").out, "");
  const Json some = run_json(base + "-n 5");
  EXPECT_EQ(count(some, "tokens"), 5u);
  EXPECT_EQ(word(some, "finish"), "length");
  const size_t prompt = count(some, "prompt_ids");
  for (const char* n : {"-1", "100"}) {
    const Json full = run_json(base + "-c 16 -n " + n);
    EXPECT_EQ(count(full, "tokens"), 16 - prompt) << n;
    EXPECT_EQ(word(full, "finish"), "context") << n;
  }
  const Json exact = run_json(base + "-c 16 -n " + std::to_string(16 - prompt));
  EXPECT_EQ(word(exact, "finish"), "length");
  EXPECT_EQ(run_tool("run " + base + "-n -2").status, 2);
  const CommandResult beyond = run_tool("run " + base + "-n 1 -c 100000000");
  EXPECT_EQ(beyond.status, 0) << beyond.err;
  EXPECT_NE(beyond.err.find("warning: --ctx 100000000 is beyond"), std::string::npos) << beyond.err;
}

// What the first turn computed, its answer included but for the last token, is there in the second.
TEST(Run, AConversationComputesOnlyWhatIsNew) {
  TempDir dir;
  test::write_file(dir / "said", "Hello there\n/stats\nTell me about the sea\n/stats\n");
  const CommandResult r =
      run_tool("run -i -n 12 --temp 0 --ignore-eos < " + shell_quote((dir / "said").string()));
  EXPECT_EQ(r.status, 0) << r.err;
  const auto number_before = [&](const char* words, size_t from) -> size_t {
    size_t at = r.err.find(words, from);
    if (at == std::string::npos) return 0;
    size_t begin = at;
    while (begin > 0 && std::isdigit(static_cast<unsigned char>(r.err[begin - 1])) != 0) --begin;
    return static_cast<size_t>(std::stoul("0" + r.err.substr(begin, at - begin)));
  };
  const size_t first = number_before(" prompt tokens", 0);
  EXPECT_GT(first, 2u) << r.err;
  EXPECT_EQ(number_before(" cached)", 0), first + 12 - 1) << r.err;
  EXPECT_NE(r.err.find("KV cache: up to "), std::string::npos) << r.err;
  EXPECT_NE(r.err.find(" for 1 sequence of "), std::string::npos) << r.err;
}

TEST(Run, MemoryForKeysAndValuesIsWhatIsAsked) {
  const std::string base = "-p 'The sea' --temp 0 --ignore-eos -n -1 ";
  const Json j = run_json(base + "--kv-gib 0.001");
  const int64_t budget = *j.find("kv_budget_bytes")->as_int();
  EXPECT_EQ(budget, static_cast<int64_t>(0.001 * (1 << 30)));
  EXPECT_EQ(word(j, "finish"), "context");
  const Json same =
      run_json(base + "-c " + std::to_string(count(j, "tokens") + count(j, "prompt_ids")) +
               " --max-step 0.001");
  EXPECT_EQ(same.find("tokens")->dump(), j.find("tokens")->dump());
  const CommandResult none = run_tool("run --kv-gib 0.0000001 -p x");
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find("hold not even"), std::string::npos) << none.err;
}

TEST(BenchEngine, TracesAreReadOrRefusedByLine) {
  TempDir dir;
  test::write_file(dir / "t.csv", "# arrival, prompt, new\n0.01, 5, 3\n0,20,2 # first\n\n");
  const CommandResult r =
      run_tool("bench engine --json --trace " + shell_quote((dir / "t.csv").string()));
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = parse_json(r.out, "bench engine");
  EXPECT_EQ(*j.find("requests")->as_int(), 2);
  EXPECT_EQ(*j.find("prompt_tokens")->as_int(), 25);
  EXPECT_EQ(*j.find("new_tokens")->as_int(), 5);
  EXPECT_GT(j.find("percent_of_bare")->as_double(), 0);
  for (const char* bad : {"0,1", "x,1,1", "0,0,1", "-1,1,1", "0,1,1,1"}) {
    test::write_file(dir / "bad.csv", std::string("0,1,1\n") + bad + "\n");
    const CommandResult refused =
        run_tool("bench engine --trace " + shell_quote((dir / "bad.csv").string()));
    EXPECT_EQ(refused.status, 1) << bad;
    EXPECT_NE(refused.err.find("line 2"), std::string::npos) << refused.err;
  }
}

TEST(BenchEngine, GapsOfAnswersInAForm) {
  const CommandResult r = run_tool(
      "bench engine --json --constrained --requests 3 --rate 1000 --prompt-tokens 8 --new-tokens "
      "16");
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = parse_json(r.out, "bench engine");
  EXPECT_GT(j.find("form_gap_p50_ms")->as_double(), 0);
  EXPECT_GT(j.find("form_gap_p50_ratio")->as_double(), 0);
  EXPECT_GT(j.find("form_gap_p99_ratio")->as_double(), 0);
  EXPECT_GT(j.find("form_gap_mean_ratio")->as_double(), 0);
}

TEST(Run, JsonHasSeedIdsAndLogProbabilities) {
  const Json j = run_json("-p 'The sea' -n 6 --temp 0 --seed 11 --logprobs 3 --ignore-eos");
  for (const char* key :
       {"text", "tokens", "prompt_ids", "seed", "finish", "logprobs", "prompt_tokens",
        "prompt_seconds", "decode_seconds", "load_seconds", "prompt_tokens_per_s",
        "decode_tokens_per_s", "gbs", "roof_gbs", "percent_of_roof", "peak_memory_bytes"})
    ASSERT_NE(j.find(key), nullptr) << key;
  EXPECT_EQ(*j.find("seed")->as_int(), 11);
  EXPECT_EQ(*j.find("prompt_tokens")->as_int(), static_cast<int64_t>(count(j, "prompt_ids")));
  ASSERT_EQ(count(j, "logprobs"), 6u);
  std::string text;
  for (size_t i = 0; i < 6; ++i) {
    const Json& entry = j.find("logprobs")->items()[i];
    const int64_t token = *entry.find("token")->as_int();
    EXPECT_EQ(token, *j.find("tokens")->items()[i].as_int());
    ASSERT_EQ(count(entry, "top"), 3u);
    const Json& best = entry.find("top")->items()[0];
    EXPECT_EQ(*best.find("token")->as_int(), token);  // greedy
    EXPECT_EQ(best.find("logprob")->as_double(), entry.find("logprob")->as_double());
    EXPECT_EQ(best.find("text")->as_string(), entry.find("text")->as_string());
    text += entry.find("text")->as_string();
    EXPECT_LT(entry.find("logprob")->as_double(), 0);
  }
  EXPECT_EQ(text, word(j, "text"));  // the texts of the tokens are the answer's
  EXPECT_EQ(count(run_json("-p x -n 2 --logprobs 0").find("logprobs")->items()[0], "top"), 0u);
  EXPECT_EQ(run_json("-p x -n 2").find("logprobs"), nullptr);
}

TEST(Run, TokensNeedNoTokenizer) {
  const std::string folder = golden_folder("qwen3moe-dense");
  const Json j = run_json(folder + " --tokens 1,2,3 -n 4 --temp 0 --logprobs 2");
  EXPECT_EQ(j.find("text"), nullptr);
  EXPECT_EQ(count(j, "tokens"), 4u);
  EXPECT_EQ(count(j, "prompt_ids"), 3u);
  EXPECT_EQ(count(j, "logprobs"), 4u);
  const CommandResult plain = run_tool("run " + folder + " --tokens 1,2,3 -n 4 --temp 0");
  std::string ids;
  for (const Json& id : j.find("tokens")->items())
    ids += (ids.empty() ? "" : " ") + std::to_string(*id.as_int());
  EXPECT_EQ(plain.out, ids + "\n");
  EXPECT_EQ(run_tool("run " + folder + " --tokens 1,99 -n 1").status, 1);
  EXPECT_EQ(run_tool("run " + folder + " -p hello -n 1").status, 1);
  // With a tokenizer the same ids are text.
  const Json text = run_json("-p 'The sea' -n 4 --temp 0");
  std::string list;
  for (const Json& id : text.find("prompt_ids")->items())
    list += (list.empty() ? "" : ",") + std::to_string(*id.as_int());
  EXPECT_EQ(word(run_json("--tokens " + list + " -n 4 --temp 0"), "text"), word(text, "text"));
}

TEST(Run, PromptsFromStandardInputAndMessages) {
  const TempDir dir;
  const auto file = [&](const char* name, std::string_view bytes) {
    test::write_file(dir / name, bytes);
    return shell_quote((dir / name).string());
  };
  const auto ids = [&](const std::string& args) {
    return run_json("-n 0 " + args).find("prompt_ids")->dump();
  };
  const std::string plain = ids("-p 'The sea'");
  EXPECT_EQ(ids("<" + file("one", "The sea\n")), plain);
  EXPECT_EQ(ids("<" + file("dos", "The sea\r\n")), plain);
  EXPECT_EQ(ids("<" + file("two", "The sea\n\n")), ids("-p 'The sea\n'"));
  EXPECT_NE(ids("-f " + file("kept", "The sea\n")), plain);  // a file is taken as it is
  const std::string messages =
      file("m", R"([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes?"},
                    {"role": "user", "content": "Go on"}])");
  EXPECT_EQ(ids("--messages " + file("m1", R"([{"role": "user", "content": "Hi"}])")),
            ids("--chat -p Hi"));
  EXPECT_NE(ids("--messages " + messages), ids("--chat -p Hi"));
  EXPECT_EQ(ids("--system S --messages " + file("m1", R"([{"role": "user", "content": "Hi"}])")),
            ids("--system S --chat -p Hi"));
  // A system message means a chat, where the folder has a template.
  EXPECT_EQ(ids("--system S -p Hi"), ids("--system S --chat -p Hi"));
  EXPECT_EQ(ids("--system S -f " + file("hi", "Hi")), ids("--system S --chat -p Hi"));
  fs::create_directory(dir / "plain");
  for (const auto& entry : fs::directory_iterator(test::bundled_model_dir()))
    if (entry.path().filename() != "tokenizer_config.json")
      fs::copy(entry.path(), dir / "plain" / entry.path().filename());
  EXPECT_EQ(ids(shell_quote((dir / "plain").string()) + " --system S -p Hi"), ids("-p 'S\nHi'"));
  const auto refuses = [&](const char* name, const char* text, const char* words) {
    const CommandResult r = run_tool("run -n 1 --messages " + file(name, text));
    EXPECT_EQ(r.status, 2);
    EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
  };
  refuses("a", "{}", "expected an array of messages");
  refuses("b", "[]", "has no message");
  refuses("c", "[3]", "message 0 is an integer");
  refuses("d", R"([{"role": "user", "content": "x"}, {"content": "x"}])", "message 1.role");
  refuses("e", R"([{"role": "user", "content": 3}])", "message 0.content is an integer");
}

// --- perplexity ------------------------------------------------------------------------------------

// The bundled model with a template that prints tools, and no reasoning.
void make_tool_folder(const TempDir& dir) {
  for (const auto& entry : fs::directory_iterator(test::bundled_model_dir()))
    fs::copy(entry.path(), dir / entry.path().filename().string());
  std::string text = test::read_file(test::test_data_dir() / "golden-text/tools/hermes.jinja");
  for (size_t at; (at = text.find("think>")) != std::string::npos;) text.replace(at, 5, "notes");
  test::write_file(dir / "chat_template.jinja", text);
}

std::string weather_tools() {
  return test::read_file(test::test_data_dir() / "golden-text/tools/weather.json");
}

TEST(Run, ToolsAreCalled) {
  const TempDir dir, files;
  make_tool_folder(dir);
  const std::string folder = shell_quote(dir.path().string()) + " ";
  const auto file = [&](const char* name, std::string_view bytes) {
    test::write_file(files / name, bytes);
    return shell_quote((files / name).string()) + " ";
  };
  const std::string tools = "--tools " + file("tools", weather_tools());
  const std::string asked = folder + tools + "--seed 4 --temp 1 -n 128 -p 'Rain?' ";
  const Json j = run_json(asked + "--tool-choice get_weather");
  EXPECT_EQ(word(j, "finish"), "tool_calls");
  EXPECT_EQ(word(j, "text"), "");
  const Json& message = *j.find("message");
  ASSERT_NE(message.find("tool_calls"), nullptr) << j.dump();
  const Json& call = message.find("tool_calls")->items().at(0);
  const Json& function = *call.find("function");
  EXPECT_EQ(word(function, "name"), "get_weather");
  const Json arguments = parse_json(word(function, "arguments"), "arguments");
  EXPECT_TRUE(word(arguments, "city") == "Oslo" || word(arguments, "city") == "Paris");
  EXPECT_GT(count(j, "prompt_ids"),
            count(run_json(folder + "--chat -n 0 -p 'Rain?'"), "prompt_ids") + 50)
      << "the template prints them";
  // The same as lines.
  const CommandResult lines = run_tool("run " + asked + "--tool-choice get_weather");
  EXPECT_EQ(lines.status, 0) << lines.err;
  std::string expected;
  for (const Json& c : message.find("tool_calls")->items())
    expected +=
        Json::object({{"id", word(c, "id")},
                      {"name", word(*c.find("function"), "name")},
                      {"arguments", parse_json(word(*c.find("function"), "arguments"), "")}})
            .dump() +
        "\n";
  EXPECT_EQ(lines.out, expected);
  EXPECT_NE(lines.err.find("finish: tool_calls"), std::string::npos) << lines.err;
  // Free text stays text, and there is a message.
  const Json plain = run_json(folder + tools + "--temp 0 -n 4 -p 'Rain?'");
  EXPECT_EQ(word(*plain.find("message"), "content"), word(plain, "text"));
  EXPECT_EQ(word(plain, "finish"), "length");
  // The message goes on with a result; ids are printed by the template where the family has any.
  Json talk = Json::array();
  talk.push(Json::object({{"role", "user"}, {"content", "Rain?"}}));
  talk.push(message);
  talk.push(
      Json::object({{"role", "tool"}, {"tool_call_id", word(call, "id")}, {"content", "no"}}));
  const Json next = run_json(folder + tools + "-n 1 --messages " + file("talk", talk.dump()));
  std::string ids;
  for (const Json& id : next.find("prompt_ids")->items())
    ids += (ids.empty() ? "" : ",") + std::to_string(*id.as_int());
  const std::string prompt = run_tool("detokenize " + folder + "--tokens " + ids).out;
  EXPECT_NE(prompt.find("<tool_response>\nno\n"), std::string::npos) << prompt;
  EXPECT_NE(prompt.find("\"arguments\": {\"city\": "), std::string::npos) << prompt;
}

TEST(Run, ToolsThatCannotBeCalledAreRefused) {
  const TempDir dir, files;
  make_tool_folder(dir);
  const std::string folder = shell_quote(dir.path().string());
  const auto refused = [&](std::string_view tools, const std::string& options, const char* words) {
    test::write_file(files / "tools", tools);
    const CommandResult r = run_tool("run -p x -n 1 --tools " +
                                     shell_quote((files / "tools").string()) + " " + options);
    EXPECT_EQ(r.status, 2) << options;
    EXPECT_NE(r.err.find(words), std::string::npos) << r.err;
  };
  refused(weather_tools(), "", "names no known format of calls; --tool-format can name one");
  refused(weather_tools(), "--tool-format nobody",
          "there is no tool format 'nobody'; known: auto none hermes");
  refused(weather_tools(), folder + " --tool-choice nobody",
          "tool_choice is 'nobody'; expected auto, required");
  refused(weather_tools(), folder + " -i", "--tools");
  refused(weather_tools(), folder + " --ignore-eos", "--ignore-eos");
  refused("[]", folder, "has no tools");
  refused("{}", folder, "tools are an object; expected an array");
  refused(R"([{"name":"a b"}])", folder, "the name of tools[0] is 'a b'");
  refused(R"([{"name":"a"},{"name":"a"}])", folder, "that of another tool");
  refused(R"([{"name":"a","parameters":[]}])", folder, "the parameters of tools[0] are an array");
  refused(R"([{"name":"a","strict":true,"parameters":{"type":"object","not":{}}}])", folder,
          "tools.a.not is not kept");
  // Where the template does not print them, masks and parsing act alone.
  test::write_file(files / "tools", weather_tools());
  const Json j =
      run_json("-p x -n 64 --seed 1 --temp 1 --tool-format hermes --tool-choice required --tools " +
               shell_quote((files / "tools").string()));
  ASSERT_NE(j.find("message")->find("tool_calls"), nullptr) << j.dump();
  EXPECT_GT(count(*j.find("message"), "tool_calls"), 0u);
}

TEST(Perplexity, MeanErrorAndLoss) {
  const std::vector<double> values = {1, 2, 4, 5};
  EXPECT_DOUBLE_EQ(mean_and_error(values).mean, 3);
  EXPECT_DOUBLE_EQ(mean_and_error(values).error, std::sqrt(10.0 / 3 / 4));
  EXPECT_EQ(mean_and_error(std::vector<double>{7}).error, 0);
  const std::vector<float> p = {0, std::log(3.0f)};  // 1/4, 3/4
  EXPECT_NEAR(loss_of(p, 1), -std::log(0.75), 1e-7);
}

// Rows of logits, from the logits command.
std::vector<std::vector<double>> log_probabilities(const std::string& folder,
                                                   const std::vector<int>& tokens,
                                                   const fs::path& file) {
  std::string list;
  for (const int t : tokens) list += (list.empty() ? "" : ",") + std::to_string(t);
  const CommandResult r = run_tool("logits " + folder + " --tokens " + list + " --out " +
                                   shell_quote(file.string()) + " --dtype f32");
  EXPECT_EQ(r.status, 0) << r.err;
  const TensorStore store = TensorStore::open_file(file.string());
  const std::vector<float> all = read_floats(store, store.require("logits"));
  std::vector<std::vector<double>> rows(tokens.size());
  for (size_t t = 0; t < tokens.size(); ++t) {
    const size_t n = all.size() / tokens.size();
    double sum = 0;
    for (size_t i = 0; i < n; ++i) sum += std::exp(static_cast<double>(all[t * n + i]));
    for (size_t i = 0; i < n; ++i) rows[t].push_back(all[t * n + i] - std::log(sum));
  }
  return rows;
}

// The last window is shorter than the others; every figure is computed again from logits.
TEST(Perplexity, AgreesWithTheLogits) {
  const TempDir dir;
  const std::string folder = golden_folder("qwen3moe-w4a8-g32-pack"),
                    base = golden_folder("qwen3moe-w8a16-g32");
  std::vector<int> tokens;
  std::string bytes;
  for (int i = 0; i < 20; ++i) {
    tokens.push_back((i * i * 7 + 3 * i) % 32);
    bytes += static_cast<char>(tokens.back());
    bytes += '\0';
  }
  test::write_file(dir / "t.bin", bytes);
  const std::string args =
      " --dtype f32 --json --tokens-file " + shell_quote((dir / "t.bin").string());
  std::vector<double> losses, divergences;
  double agreed = 0;
  for (size_t begin = 0; begin < 19; begin += 8) {
    const size_t n = std::min<size_t>(8, 19 - begin);
    const std::vector<int> window(tokens.begin() + static_cast<std::ptrdiff_t>(begin),
                                  tokens.begin() + static_cast<std::ptrdiff_t>(begin + n));
    const auto q = log_probabilities(folder, window, dir / "q"),
               p = log_probabilities(base, window, dir / "p");
    for (size_t t = 0; t < n; ++t) {
      losses.push_back(-q[t][static_cast<size_t>(tokens[begin + t + 1])]);
      double kl = 0;
      for (size_t i = 0; i < p[t].size(); ++i) kl += std::exp(p[t][i]) * (p[t][i] - q[t][i]);
      divergences.push_back(kl);
      agreed += std::max_element(p[t].begin(), p[t].end()) - p[t].begin() ==
                std::max_element(q[t].begin(), q[t].end()) - q[t].begin();
    }
  }
  const CommandResult r = run_tool("perplexity " + folder + " --ctx 8 --kl " + base + args);
  ASSERT_EQ(r.status, 0) << r.err;
  const Json j = parse_json(r.out, "perplexity");
  const auto near = [&](const char* key, double want) {
    ASSERT_NE(j.find(key), nullptr) << key;
    EXPECT_NEAR(j.find(key)->as_double(), want, 1e-5 * std::max(1.0, std::abs(want))) << key;
  };
  EXPECT_EQ(*j.find("tokens")->as_int(), 19);
  near("loss", mean_and_error(losses).mean);
  near("stderr", mean_and_error(losses).error);
  near("kl", mean_and_error(divergences).mean);
  near("kl_stderr", mean_and_error(divergences).error);
  near("top1_agreement", agreed / 19);
  EXPECT_GT(j.find("kl")->as_double(), 0);
  EXPECT_LT(agreed, 19);  // the case can tell

  const CommandResult first = run_tool("perplexity " + folder + " --ctx 8 --windows 2" + args);
  const Json two = parse_json(first.out, "perplexity");
  EXPECT_EQ(*two.find("tokens")->as_int(), 16);
  EXPECT_EQ(two.find("kl"), nullptr);
  losses.resize(16);
  EXPECT_NEAR(two.find("loss")->as_double(), mean_and_error(losses).mean, 1e-5);
  EXPECT_NEAR(two.find("stderr")->as_double(), mean_and_error(losses).error, 1e-5);
  // The same folder is at no distance, one with other tokens is refused.
  const Json same =
      parse_json(run_tool("perplexity " + folder + " --ctx 8 --kl " + folder + args).out, "same");
  EXPECT_EQ(same.find("kl")->as_double(), 0);
  EXPECT_EQ(same.find("top1_agreement")->as_double(), 1);
  const CommandResult other = run_tool("perplexity --ctx 8 --kl " + base + args);
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("same tokenizer"), std::string::npos) << other.err;
  test::write_file(dir / "one.bin", std::string(2, '\1'));
  EXPECT_EQ(
      run_tool("perplexity " + folder + " --tokens-file " + shell_quote((dir / "one.bin").string()))
          .status,
      1);
}

}  // namespace
}  // namespace moebius::run_test
