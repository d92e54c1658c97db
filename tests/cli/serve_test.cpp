// SPDX-License-Identifier: Apache-2.0
// The serve command on the bundled model: the whole way from a socket to the engine and back.
#include <fcntl.h>
#include <fmt/core.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <fstream>
#include <set>

#include "cli/pty_util.h"
#include "cli/served_util.h"
#include "unit/device/cuda_util.h"
#include "unit/serve/serve_util.h"
#include "unit/test_util.h"

namespace moebius::serve_test {
namespace {

using test::Client;
using test::eventually;
using test::Response;
using test::Served;

std::string text_of(const Response& r) {
  return r.status == 200 ? r.json().find("choices")->items()[0].find("text")->as_string() : "";
}

// What run says for a seed is what the server says for it, streamed or not, alone or in company.
TEST(ServeCommand, AnswersAsRunDoes) {
  const test::CommandResult run = test::run_tool(
      "run -p 'It was a dark' -n 24 --temp 0.8 --top-p 0.95 --top-k 0 --seed 7 --json "
      "--ignore-eos");
  ASSERT_EQ(run.status, 0) << run.err;
  const std::string expected = parse_json(run.out, "run").find("text")->as_string();
  const Served server("--parallel 8");
  ASSERT_NE(server.port, 0);
  const std::string fields =
      R"("prompt":"It was a dark","max_tokens":24,"temperature":0.8,"top_p":0.95,"seed":7,"ignore_eos":true)";
  EXPECT_EQ(text_of(server.completion(fields)), expected);
  std::vector<std::thread> others;
  for (int i = 0; i < 6; ++i)
    others.emplace_back([&, i] {
      server.completion(fmt::format(R"("prompt":"Number {} of","max_tokens":40,"seed":{})", i, i));
    });
  EXPECT_EQ(text_of(server.completion(fields)), expected);
  std::string joined;
  for (const std::string& e : server.completion(fields + R"(,"stream":true)").events())
    if (e != "[DONE]")
      joined += parse_json(e, "event").find("choices")->items()[0].find("text")->as_string();
  EXPECT_EQ(joined, expected);
  for (std::thread& t : others) t.join();
  const Json two = server.completion(fields + R"(,"n":2,"logprobs":3)").json();
  EXPECT_EQ(two.find("choices")->items()[0].find("text")->as_string(),
            expected);  // choice 0 draws from the seed itself
  EXPECT_EQ(two.find("usage")->find("completion_tokens")->as_uint(), 48u);
}

TEST(ServeCommand, PrefixesLogprobsAndStops) {
  const Served server("--parallel 4");
  ASSERT_NE(server.port, 0);
  std::string ids = "1";
  for (int i = 2; i < 700; ++i) ids += fmt::format(",{}", i);
  const std::string fields = "\"prompt\":[" + ids + R"(],"max_tokens":4,"temperature":0)";
  const Json first = server.completion(fields).json(), second = server.completion(fields).json();
  EXPECT_EQ(first.find("usage")->find("prompt_tokens_details")->find("cached_tokens")->as_uint(),
            0u);
  EXPECT_GE(second.find("usage")->find("prompt_tokens_details")->find("cached_tokens")->as_uint(),
            640u);
  EXPECT_EQ(first.find("choices")->dump(), second.find("choices")->dump());
  const Json salted = server.completion(fields + R"(,"cache_salt":"x")").json();
  EXPECT_EQ(salted.find("usage")->find("prompt_tokens_details")->find("cached_tokens")->as_uint(),
            0u);

  const Json echo =
      server
          .completion(
              R"("prompt":"It was a dark and stormy night","max_tokens":1,"echo":true,"logprobs":1,"temperature":0)")
          .json();
  const Json& lists = *echo.find("choices")->items()[0].find("logprobs");
  const auto& values = lists.find("token_logprobs")->items();
  EXPECT_EQ(values.size(), echo.find("usage")->find("total_tokens")->as_uint());
  EXPECT_TRUE(values[0].is_null());
  for (size_t i = 1; i < values.size(); ++i) EXPECT_LE(values[i].as_double(), 0.0);
  // The token that was taken greedily is the best one, by the very number.
  double best = -1e9;
  for (const auto& [token, value] : lists.find("top_logprobs")->items().back().members())
    best = std::max(best, value.as_double());
  EXPECT_EQ(values.back().as_double(), best);

  const std::string whole =
      text_of(server.completion(R"("prompt":"It was a dark","max_tokens":40,"temperature":0)"));
  ASSERT_GT(whole.size(), 20u);
  const std::string stop = whole.substr(10, 3);
  std::string quoted;
  append_json_string(quoted, stop);
  EXPECT_EQ(text_of(server.completion(
                R"("prompt":"It was a dark","max_tokens":40,"temperature":0,"stop":)" + quoted)),
            whole.substr(0, whole.find(stop)));
  const Response chat =
      server.ask(test::post("/v1/chat/completions",
                            R"({"messages":[{"role":"user","content":"Hello"}],"max_tokens":5})"));
  EXPECT_EQ(chat.status, 200) << chat.body;
}

// A server that is stopped answers after its restart as if it had not been; so does one that is
// killed, but for what memory had; two on one folder share what they wrote. Another key, even of the
// same name, finds nothing.
TEST(ServeCommand, PromptsOnDiskSurviveARestart) {
  const test::TempDir dir;
  test::write_file(dir / "keys", "ann:secret-1\n");
  test::write_file(dir / "others", "ann:secret-2\nbob:secret-1\n");
  const auto options = [&](const char* keys, const char* more) {
    return fmt::format("--parallel 2 --api-key-file {} --kv-dir {} {}",
                       test::shell_quote((dir / keys).string()),
                       test::shell_quote((dir / "kv").string()), more);
  };
  std::string ids = "1";
  for (int i = 2; i < 700; ++i) ids += fmt::format(",{}", i);
  const auto ask = [&](const Served& server, const char* key) {
    const Response r = server.ask(
        test::post("/v1/completions",
                   "{\"prompt\":[" + ids + R"(],"max_tokens":4,"temperature":0,"logprobs":2})",
                   fmt::format("Authorization: Bearer {}\r\n", key)));
    EXPECT_EQ(r.status, 200) << r.body;
    const Json j = r.json();
    return std::pair(
        j.find("choices")->dump(),
        j.find("usage")->find("prompt_tokens_details")->find("cached_tokens")->as_uint());
  };
  std::string expected;
  {
    Served server(options("keys", "--open-metrics"));
    ASSERT_NE(server.port, 0);
    const auto [text, cached] = ask(server, "secret-1");
    expected = text;
    EXPECT_EQ(cached, 0u);
    EXPECT_EQ(server.metric("kv_disk_bytes"), "0");
    server.signal(SIGTERM);
    EXPECT_EQ(server.wait_end(), 0);
  }
  for (const bool shared : {false, true}) {
    Served server(options("keys", "--open-metrics")), other(options("others", "--open-metrics"));
    ASSERT_NE(server.port, 0);
    EXPECT_EQ(ask(server, "secret-1"), std::pair(expected, uint64_t{698}));
    EXPECT_EQ(server.metric("kv_disk_hits_total"), "640");
    EXPECT_NE(server.metric("kv_disk_bytes"), "0");
    EXPECT_EQ(ask(other, "secret-2"), std::pair(expected, uint64_t{0}));
    EXPECT_EQ(ask(other, "secret-1"), std::pair(expected, uint64_t{698}));  // the key, not its name
    EXPECT_EQ(other.metric("kv_disk_hits_total"), "640");
    EXPECT_EQ(other.metric("kv_disk_damaged_blocks_total"), "0");
    server.signal(shared ? SIGTERM : SIGKILL), other.signal(SIGKILL);
    EXPECT_EQ(server.wait_end(), shared ? 0 : 128 + SIGKILL);
    other.wait_end();
  }
  Served all(options("others", "--share-prefixes"));
  EXPECT_EQ(ask(all, "secret-1").second, 0u);
  EXPECT_EQ(ask(all, "secret-2").second, 698u);
}

// Two models of one process answer as each would alone; one that sleeps gives its memory back and
// answers the same when it woke, also where its prompts and packed weights come from disk. A folder that
// is gone by then is said, and harms nobody else.
TEST(ServeCommand, SeveralModelsOneOfThemAsleep) {
  const test::TempDir dir;
  const std::filesystem::path copy = dir.path() / "copy", gone = dir.path() / "gone";
  std::filesystem::copy(test::bundled_model_dir(), copy, std::filesystem::copy_options::recursive);
  const std::string small = "--model " +
                            test::shell_quote("small=" + test::bundled_model_dir().string()),
                    other = " --model " + test::shell_quote("other=" + copy.string());
  const std::string prompt =
      R"("prompt":"It was a dark night.","max_tokens":12,"temperature":0.7,"seed":3)";
  const Response alone = Served("--parallel 2").completion(prompt);
  const Served server(small + other + " --alias gpt=other --parallel 2 --kv-gib 0.05 " +
                      "--sleep-after 0.5 --kv-dir " +
                      test::shell_quote((dir.path() / "kv").string()) + " --pack-dir " +
                      test::shell_quote((dir.path() / "packed").string()));
  ASSERT_NE(server.port, 0);
  const auto asleep = [&] {
    return server.metric("model_awake{model=\"small\"}") == "0" &&
           server.metric("model_awake{model=\"other\"}") == "0";
  };
  const auto memory = [&] { return std::stod(server.metric("process_anonymous_bytes")); };
  const std::string of[] = {R"(,"model":"small")", R"(,"model":"gpt")"};
  double awake = 0;
  for (int round = 0; round < 2; ++round) {
    for (const std::string& model : of)
      EXPECT_EQ(text_of(server.completion(prompt + model)), text_of(alone));
    awake = std::max(awake, memory());
    ASSERT_TRUE(Served::eventually_long(asleep));
  }
  if (test::plain_build()) {  // sanitizers keep memory
    EXPECT_TRUE(Served::eventually_long([&] { return memory() < 0.7 * awake; }))
        << memory() << " of " << awake;
  }
  // At the start and in the second round; again in the first where half a second had passed by then.
  EXPECT_GE(std::stoi(server.metric("model_loads_total{model=\"other\"}")), 2);
  std::filesystem::rename(copy, gone);
  const Response failed = server.completion(prompt + of[1]);
  EXPECT_EQ(failed.status, 503);
  EXPECT_NE(failed.body.find("could not be loaded"), std::string::npos) << failed.body;
  EXPECT_EQ(text_of(server.completion(prompt + of[0])), text_of(alone));
  std::filesystem::rename(gone, copy);
  EXPECT_EQ(text_of(server.completion(prompt + of[1])), text_of(alone));
  EXPECT_EQ(server.ask(test::get("/health")).status, 200);
}

TEST(ServeCommand, ModelsThatCannotBeAreRefused) {
  const std::string folder = test::bundled_model_dir().string(), dir = test::shell_quote(folder),
                    a = "--model " + test::shell_quote("a=" + folder);
  const auto words = [](const std::string& args) {
    const test::CommandResult r = test::run_tool("serve --port 0 " + args);
    EXPECT_NE(r.status, 0) << args;
    return r.err;
  };
  for (const auto& [args, part] : std::vector<std::pair<std::string, std::string>>{
           {"--model " + dir, "expected NAME=DIR"},
           {"--model " + test::shell_quote("=" + folder), "expected NAME=DIR"},
           {"--model a=/nowhere/at/all", "/nowhere/at/all"},
           {a + " " + a, "two models are called 'a'"},
           {a + " --alias a", "two models are called 'a'"},
           {a + " --alias x=b", "no model is called 'b'"},
           {dir + " " + a, "leave one of them out"},
           {a + " --model " + test::shell_quote("b=" + folder) + " --tp 2", "not with ranks"},
           {"--sleep-after 5 --tp 2", "not with ranks"},
           {"--kernel warp", "stopped, exit status 1"}})
    EXPECT_NE(words(args).find(part), std::string::npos) << args << ": " << words(args);
}

// Down to the engine: what may be chosen, what may not, and what the prompt's tokens are worth.
TEST(ServeCommand, ConstraintsAreObeyed) {
  const Served server("--parallel 4");
  const std::string fields =
      R"("prompt":"It was a dark","max_tokens":24,"temperature":1,"seed":3,"ignore_eos":true,"return_token_ids":true)";
  const Response free = server.completion(fields);
  ASSERT_EQ(free.status, 200) << free.body;
  const Json said = free.json();
  const auto& ids = said.find("choices")->items()[0].find("token_ids")->items();
  // Every second of the tokens that come by themselves.
  std::string list;
  std::set<uint64_t> allowed;
  for (size_t i = 0; i < ids.size(); i += 2) {
    if (allowed.insert(ids[i].as_uint()).second)
      list += fmt::format("{}{}", i > 0 ? "," : "", ids[i].as_uint());
  }
  const Response narrow = server.completion(fields + ",\"allowed_token_ids\":[" + list + "]");
  ASSERT_EQ(narrow.status, 200) << narrow.body;
  const Json narrowed = narrow.json();
  for (const Json& id : narrowed.find("choices")->items()[0].find("token_ids")->items())
    EXPECT_TRUE(allowed.contains(id.as_uint())) << id.as_uint();
  // The first word of the free answer does not come again.
  const std::string text = text_of(free);
  const size_t begin = text.find_first_not_of(' ');
  const std::string word = text.substr(begin, text.find(' ', begin) - begin);
  std::string quoted;
  append_json_string(quoted, word);
  EXPECT_NE(text.find(word), std::string::npos);
  const Response without = server.completion(fields + ",\"bad_words\":[" + quoted + "]");
  EXPECT_NE(text_of(without).substr(0, begin + word.size()), text.substr(0, begin + word.size()));
  // The same figures as echo gives, asked again when the prompt is in the cache.
  const Response echo = server.completion(
      R"("prompt":"It was a dark","max_tokens":1,"echo":true,"logprobs":2,"temperature":0)");
  const Json lists = *echo.json().find("choices")->items()[0].find("logprobs");
  for (int round = 0; round < 2; ++round) {
    const Response r = server.completion(
        R"("prompt":"It was a dark","max_tokens":1,"prompt_logprobs":2,"return_token_ids":true,"temperature":0)");
    ASSERT_EQ(r.status, 200) << r.body;
    const Json answer = r.json();
    const Json& choice = answer.find("choices")->items()[0];
    const auto& prompt = choice.find("prompt_logprobs")->items();
    const auto& tokens = choice.find("prompt_token_ids")->items();
    ASSERT_EQ(prompt.size(), tokens.size());
    EXPECT_TRUE(prompt[0].is_null());
    for (size_t i = 1; i < prompt.size(); ++i) {
      const Json* own = prompt[i].find(std::to_string(tokens[i].as_uint()));
      ASSERT_NE(own, nullptr);
      EXPECT_EQ(own->find("logprob")->as_double(),
                lists.find("token_logprobs")->items()[i].as_double());
      const uint64_t rank = own->find("rank")->as_uint();
      EXPECT_EQ(prompt[i].members().size(), rank <= 2 ? 2u : 3u);
    }
  }
}

TEST(ServeCommand, PrefixesAreOfTheKey) {
  const test::TempDir folder;
  const std::string keys = (folder / "keys").string();
  std::ofstream(keys) << "ann:secret-1\nbob:secret-2\n";
  std::string ids = "1";
  for (int i = 2; i < 400; ++i) ids += fmt::format(",{}", i);
  const std::string body = "{\"prompt\":[" + ids + R"(],"max_tokens":2,"temperature":0})";
  for (const bool shared : {false, true}) {
    const Served server(
        fmt::format("--parallel 2 --api-key-file {}{}", keys, shared ? " --share-prefixes" : ""));
    ASSERT_NE(server.port, 0);
    const auto cached = [&](const char* key) {
      const Response r = server.ask(
          test::post("/v1/completions", body, fmt::format("Authorization: Bearer {}\r\n", key)));
      EXPECT_EQ(r.status, 200) << r.body;
      return r.json()
          .find("usage")
          ->find("prompt_tokens_details")
          ->find("cached_tokens")
          ->as_uint();
    };
    EXPECT_EQ(cached("secret-1"), 0u);
    const uint64_t own = cached("secret-1");
    EXPECT_GE(own, 384u);
    EXPECT_EQ(cached("secret-2"), shared ? own : 0u);
    EXPECT_EQ(cached("secret-2"), own);
  }
}

TEST(ServeCommand, DisconnectsFreeEverything) {
  const Served server("--parallel 2");
  ASSERT_NE(server.port, 0);
  const std::string fields =
      R"({"prompt":"It was","max_tokens":1500,"ignore_eos":true,"stream":true})";
  for (int i = 0; i < 20; ++i) {
    Client client(server.port);
    client.send(test::post("/v1/completions", fields));
    if (i % 3 == 0) client.read(true);
  }
  EXPECT_TRUE(eventually([&] {
    return server.metric("num_requests_running") == "0" &&
           server.metric("num_requests_waiting") == "0";
  }));
  EXPECT_EQ(server.metric(R"(kv_blocks{state="used"})"), "0");
  EXPECT_GT(std::stod(server.metric(R"(step_phase_seconds_total{phase="idle"})")), 0);
  EXPECT_NE(text_of(server.completion(R"("prompt":"It was","max_tokens":3)")), "");
}

TEST(ServeCommand, SignalsAndStatus) {
  Served server("--parallel 2 --drain 20");
  ASSERT_NE(server.port, 0);
  Client client(server.port, 60);
  client.send(test::post("/v1/completions",
                         R"({"prompt":"It was","max_tokens":60,"ignore_eos":true,"stream":true})"));
  EXPECT_EQ(client.read(true).status, 200);
  server.signal(SIGTERM);
  std::string rest;
  for (std::string more; !(more = client.read_some()).empty();) rest += more;
  EXPECT_NE(rest.find("data: [DONE]"), std::string::npos);
  EXPECT_EQ(server.wait_end(), 0);
  const test::CommandResult open = test::run_tool("serve --host 0.0.0.0 --port 0");
  EXPECT_EQ(open.status, 2);
  EXPECT_NE(open.err.find("--api-key-file"), std::string::npos);
  const test::CommandResult nowhere = test::run_tool("serve --host nohost --port 0");
  EXPECT_EQ(nowhere.status, 1);
  EXPECT_TRUE(nowhere.err.starts_with("moebius: --host nohost: ")) << nowhere.err;
  EXPECT_EQ(nowhere.err.find("key"), std::string::npos) << nowhere.err;
  // The memory of the KV cache is that of all sequences together.
  const test::TempDir dir;
  const std::string log = test::shell_quote((dir / "log").string());
  const test::CommandResult budget = test::run_tool(
      "serve --port 0 --parallel 3 -c 64 > " + log + " 2>&1 & p=$!; until grep -q 'KV cache' " +
      log + " || ! kill -0 $p; do sleep 0.05; done; kill $p; wait $p");
  EXPECT_EQ(budget.status, 0) << budget.err;
  const std::string said = test::read_file(dir / "log");
  EXPECT_NE(said.find(" for 3 sequences of 64 tokens"), std::string::npos) << said;
  const test::CommandResult broken = test::run_tool("serve /does/not/exist --port 0");
  EXPECT_EQ(broken.status, 1);
  Served killed("");
  const uint16_t port = killed.port;
  killed.signal(SIGKILL);
  EXPECT_EQ(killed.wait_end(), 128 + SIGKILL);
  const Served again(fmt::format("--port {}", port));  // the last of two counts: binds at once
  EXPECT_EQ(again.port, port);
}

// A log that nobody reads any more, a full disk, a file that may not grow, no log at all: the server
// goes on, and counts the lines.
// Who reads the address may end the server at once: it heeds signals before it says where it is.
TEST(ServeCommand, ASignalRightAfterTheAddress) {
  const test::TempDir folder;
  for (int i = 0; i < 4; ++i) {
    const std::string pipe = test::shell_quote((folder / fmt::format("address{}", i)).string());
    const test::CommandResult r = test::run_tool(
        fmt::format("serve --port 0 >{0} & read line <{0}; kill $!; wait $!; echo $?", pipe),
        "mkfifo " + pipe + ";");
    EXPECT_EQ(r.out, "0\n") << r.err;
  }
}

TEST(ServeCommand, ItsLogMayFail) {
  const test::TempDir folder;
  const std::string pipe = (folder / "pipe").string(), file = (folder / "file").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  // The file is larger than the limit. The limit is not 0: ThreadSanitizer writes a file of its own
  // (512 KiB) before main, and would end there.
  test::write_file(file, std::string(8 << 20, '\n'));
  const std::pair<std::string, std::string> cases[] = {
      {"2>" + pipe, ""}, {"2>/dev/full", ""}, {"2>>" + file, "ulimit -f 4096; "}, {"2>&-", ""}};
  for (const auto& [log, before] : cases) {
    const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    Served server("--parallel 2 " + log, before);
    ASSERT_NE(server.port, 0) << log;
    close(reader);
    for (int i = 0; i < 3; ++i)
      EXPECT_NE(text_of(server.completion(R"("prompt":"It was","max_tokens":3)")), "") << log;
    EXPECT_GE(std::stoi("0" + server.metric("log_lines_lost_total")), 3) << log;
    server.signal(SIGTERM);
    EXPECT_EQ(server.wait_end(), 0) << log;
  }
}

// The journal writes times; a file does not, whatever the variable says of another one.
TEST(ServeCommand, ItsLinesInTheJournalHaveNoTime) {
  const test::TempDir folder;
  for (const bool journal : {true, false}) {
    const std::string log = (folder / (journal ? "journal" : "file")).string();
    test::write_file(log, "");
    struct stat file {};
    ASSERT_EQ(stat(log.c_str(), &file), 0);
    Served server(
        "--parallel 2 2>>" + log,
        fmt::format("export JOURNAL_STREAM={}:{}; ", file.st_dev, file.st_ino + (journal ? 0 : 1)));
    ASSERT_NE(server.port, 0);
    server.signal(SIGTERM);
    EXPECT_EQ(server.wait_end(), 0);
    const std::string text = test::read_file(log);
    EXPECT_EQ(
        text.find("\nlistening on ") != std::string::npos || text.starts_with("listening on "),
        journal)
        << text;
    EXPECT_EQ(text.find("Z listening on ") == std::string::npos, journal) << text;
  }
}

// A log whose reader stands still holds up nobody.
TEST(ServeCommand, ItsLogMayStandStill) {
  const test::TempDir folder;
  const std::string pipe = (folder / "pipe").string();
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const int reader = open(pipe.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
  fcntl(reader, F_SETPIPE_SZ, 4096);
  Served server("--parallel 2 2>" + pipe);
  ASSERT_NE(server.port, 0);
  Client client(server.port);
  for (int i = 0; i < 200; ++i) {
    client.send(test::get("/version"));
    ASSERT_EQ(client.read().status, 200) << i;
  }
  EXPECT_GE(std::stoi("0" + server.metric("log_lines_lost_total")), 50);
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait_end(), 0);
  close(reader);
}

// A device that is lost ends the server with 3, and its requests with words; it can be started again at once.
TEST(ServeCommand, ALostDeviceEndsIt) {
  if (!test::has_emulated_plugin()) GTEST_SKIP() << "skipped: no emulated plugin in this bundle";
  const test::TempDir dir;
  const std::string lost = (dir.path() / "lost").string(),
                    before = "MOEBIUS_CUDA_MODULE=" + test::shell_quote(test::emulated_plugin()) +
                             " MOEBIUS_EMULATED_LOST=" + test::shell_quote(lost) +
                             "; export MOEBIUS_CUDA_MODULE MOEBIUS_EMULATED_LOST; ";
  const std::string fields =
      R"("prompt":"It was","max_tokens":2,"temperature":0,"ignore_eos":true)";
  // One layer's attention, or its experts, which ranks spread: the emulated device is slow.
  for (const std::string place : {"attention=cuda:0-0", "experts=cuda:0-0 --ep 2"}) {
    SCOPED_TRACE(place);
    const std::string words = "--parallel 2 --kv-gib 0.05 --place " + place;
    std::string text;
    {
      Served server(words, before);
      ASSERT_NE(server.port, 0);
      text = text_of(server.completion(fields));
      EXPECT_FALSE(text.empty());
      std::ofstream(lost) << "now";
      const Response r = server.completion(fields);
      EXPECT_EQ(r.status, 500) << r.body;
      EXPECT_NE(r.body.find("unspecified launch failure (emulated)"), std::string::npos) << r.body;
      EXPECT_EQ(server.wait_end(), 3);
    }
    ASSERT_EQ(unlink(lost.c_str()), 0);
    Served server(words, before);
    EXPECT_EQ(text_of(server.completion(fields)), text);
  }
}

}  // namespace
}  // namespace moebius::serve_test
