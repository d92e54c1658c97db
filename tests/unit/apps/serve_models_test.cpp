// SPDX-License-Identifier: Apache-2.0
// Several models behind one server, and models that sleep: scripted generators stand for the engines.
#include <gtest/gtest.h>

#include <atomic>
#include <set>
#include <thread>

#include "apps/serve_models.h"
#include "base/error.h"
#include "runtime/memory.h"
#include "serve/waking_generator.h"
#include "unit/serve/serve_util.h"
#include "unit/test_util.h"

namespace moebius::serve_models_test {
namespace {

using test::bundled_tokenizer;
using test::Client;
using test::eventually;
using test::FakeGenerator;
using test::Response;

ServedModel named(const std::string& name, size_t slots = 4) {
  ServedModel m = test::served_model(slots);
  m.name = name;
  m.aliases = {name + "-too"};
  return m;
}

// Answers with one token over and over, so that it shows who answered.
FakeGenerator::Script repeats(int32_t token) {
  return [token](const Request& r, size_t) { return std::vector<int32_t>(r.max_new, token); };
}

// A server with these models until the end of its life.
class Serving {
 public:
  explicit Serving(std::vector<ModelOffer> offers, ServerOptions options = {}) {
    options.port = 0;
    options.log = [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_ += line + "\n";
    };
    server = std::make_unique<ApiServer>(options);
    port = server->listen();
    server->ready(std::move(offers));
    thread_ = std::thread([this] { status_ = server->run(); });
    eventually([&] { return ask(test::get("/health")).status == 200; });
  }
  ~Serving() {
    server->stop();
    join();
    server.reset();
  }
  int join() {
    if (thread_.joinable()) thread_.join();
    return status_;
  }
  Response ask(const std::string& bytes) const {
    Client client(port);
    client.send(bytes);
    return client.read();
  }
  Response completion(const std::string& fields) const {
    return ask(test::post("/v1/completions", "{" + fields + "}"));
  }
  std::string error(const Response& r) const {
    return r.status >= 400 ? r.json().find("error")->find("message")->as_string() : "";
  }
  std::string log() const {
    const std::lock_guard lock(mutex_);
    return log_;
  }
  std::unique_ptr<ApiServer> server;
  uint16_t port = 0;

 private:
  mutable std::mutex mutex_;
  std::string log_;
  std::thread thread_;
  int status_ = -1;
};

struct TwoModels {
  explicit TwoModels(ServedModel second = named("b"))
      : serving({{named("a"), &a}, {std::move(second), &b}}) {}
  ~TwoModels() {
    serving.server->stop();
    serving.join();
    a.halt(), b.halt();
  }
  FakeGenerator a{bundled_tokenizer(), 4, repeats(100)};
  FakeGenerator b{bundled_tokenizer(), 4, repeats(200)};
  Serving serving;
};

std::string answer_model(const Response& r) {
  return r.status == 200 ? r.json().find("model")->as_string() : "";
}

TEST(ServeModels, RequestsChooseByName) {
  TwoModels two;
  const Serving& s = two.serving;
  std::vector<std::string> ids;
  const Json models = s.ask(test::get("/v1/models")).json();
  for (const Json& m : models.find("data")->items())
    ids.push_back(m.find("id")->as_string() + ":" + m.find("root")->as_string());
  EXPECT_EQ(ids, (std::vector<std::string>{"a:a", "a-too:a", "b:b", "b-too:b"}));
  const Json anthropic = s.ask(test::get("/v1/models", "anthropic-version: 2023-06-01\r\n")).json();
  EXPECT_EQ(anthropic.find("data")->items().size(), 4u);
  EXPECT_EQ(anthropic.find("last_id")->as_string(), "b-too");
  EXPECT_EQ(s.ask(test::get("/v1/models/b-too")).json().find("root")->as_string(), "b");
  EXPECT_EQ(s.ask(test::get("/v1/models/c")).status, 404);

  const auto text = [](const Response& r) {
    return r.json().find("choices")->items()[0].find("text")->as_string();
  };
  const std::vector<int32_t> two_a(2, 100), two_b(2, 200);
  const std::string of_a = bundled_tokenizer().decode(two_a, true),
                    of_b = bundled_tokenizer().decode(two_b, true);
  const Response first = s.completion(R"("prompt":"x","max_tokens":2)"),
                 second = s.completion(R"("prompt":"x","max_tokens":2,"model":"b")"),
                 alias = s.completion(R"("model":"b-too","prompt":"x","max_tokens":2)");
  EXPECT_EQ(text(first), of_a);
  EXPECT_EQ(text(second), of_b);
  EXPECT_EQ(text(alias), of_b);
  EXPECT_EQ(answer_model(first), "a");
  EXPECT_EQ(answer_model(second), "b");
  EXPECT_EQ(answer_model(s.ask(test::post(
                "/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"Hi"}],"max_tokens":1,"model":"b"})"))),
            "b");
  for (const char* name : {"c", "../../etc/passwd", "/etc", "", "A"}) {
    const Response r = s.completion(R"("prompt":"x","model":")" + std::string(name) + "\"");
    EXPECT_EQ(r.status, 404) << name;
    EXPECT_NE(s.error(r).find("these are: 'a', 'b'"), std::string::npos) << s.error(r);
  }
  EXPECT_EQ(s.completion(R"("prompt":"x","model":7)").status, 400);
  EXPECT_EQ(s.completion(R"("prompt":"x","model":"b",)").status, 400);
  EXPECT_NE(s.log().find("model b prompt"), std::string::npos) << s.log();
}

// What is checked against a model is checked against the one that is asked.
TEST(ServeModels, LimitsAreThoseOfTheModel) {
  ServedModel small = named("b", 1);
  small.vocab = 300, small.context = 16;
  TwoModels two(small);
  const Serving& s = two.serving;
  EXPECT_EQ(s.completion(R"("prompt":[4000],"max_tokens":1,"model":"a")").status, 200);
  EXPECT_EQ(s.completion(R"("prompt":[4000],"max_tokens":1,"model":"b")").status, 400);
  EXPECT_EQ(s.completion(R"("prompt":[1,2],"n":2,"model":"a")").status, 200);
  EXPECT_EQ(s.completion(R"("prompt":[1,2],"n":2,"model":"b")").status, 400);
  const auto length = [&](const char* model) {
    return s.ask(test::post("/tokenize", R"({"prompt":"x","model":")" + std::string(model) + "\"}"))
        .json()
        .find("max_model_len")
        ->as_int()
        .value();
  };
  EXPECT_EQ(length("a"), 2048);
  EXPECT_EQ(length("b"), 16);
}

// A full queue of one model turns nobody away from the other.
TEST(ServeModels, QueuesAreApart) {
  TwoModels two(named("b", 1));
  const Serving& s = two.serving;
  two.b.held = true;
  std::vector<std::unique_ptr<Client>> waiting;
  for (int i = 0; i < 5; ++i) {
    waiting.push_back(std::make_unique<Client>(s.port));
    waiting.back()->send(
        test::post("/v1/completions", R"({"prompt":"x","max_tokens":1,"model":"b"})"));
  }
  EXPECT_TRUE(eventually([&] {
    const GeneratorState b = two.b.state();
    return b.engine.running + b.engine.waiting == 5;
  }));
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":1,"model":"b")").status, 429);
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":1,"model":"a")").status, 200);
  two.b.held = false;
  for (const auto& c : waiting) EXPECT_EQ(c->read().status, 200);
}

TEST(ServeModels, MetricsAndStateAreOfEach) {
  TwoModels two;
  const Serving& s = two.serving;
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":3,"model":"b")").status, 200);
  const std::string text = s.ask(test::get("/metrics")).body;
  for (const char* line :
       {"moebius_generation_tokens_total{model_name=\"a\",model=\"a\"} 0\n",
        "moebius_generation_tokens_total{model_name=\"b\",model=\"b\"} 3\n",
        "moebius_request_success_total{model_name=\"b\",model=\"b\",finished_reason=\"length\"} "
        "1\n",
        "moebius_kv_blocks{model_name=\"a\",model=\"a\",state=\"used\"} 0\n",
        "moebius_time_to_first_token_seconds_count{model_name=\"b\",model=\"b\"} 1\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
  std::set<std::string> named_before;  // all lines of a name stand together, under one head
  for (size_t at = text.find("# TYPE "); at != std::string::npos; at = text.find("# TYPE ", at + 1))
    EXPECT_TRUE(named_before.insert(text.substr(at, text.find(' ', at + 7) - at)).second);
  EXPECT_GT(named_before.size(), 20u);
  const auto state = [&](const char* query) {
    return s.ask(test::get("/api/state" + std::string(query))).json().find("model")->as_string();
  };
  EXPECT_EQ(state(""), "a");
  EXPECT_EQ(state("?model=b"), "b");
  EXPECT_EQ(s.ask(test::get("/api/state?model=c")).status, 404);
  EXPECT_EQ(s.ask(test::get("/api/events?model=c")).status, 404);
  EXPECT_EQ(s.ask(test::get("/health")).body,
            R"({"status":"ok","models":{"a":"ready","b":"ready"}})");
}

// One engine's end is not the other's; the last one's is the server's.
TEST(ServeModels, OneMayDie) {
  TwoModels two;
  Serving& s = two.serving;
  two.b.dies = true;
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":3,"model":"b")").status, 500);
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":3,"model":"b")").status, 503);
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":3,"model":"a")").status, 200);
  EXPECT_EQ(s.ask(test::get("/health")).body,
            R"({"status":"ok","models":{"a":"ready","b":"dead"}})");
  two.a.dies = true;
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":3,"model":"a")").status, 500);
  EXPECT_EQ(s.join(), 3);
}

TEST(ServeModels, OneBudget) {
  using Shares = std::vector<uint64_t>;
  const Shares wanted = {300, 100};
  EXPECT_EQ(share_kv_budget(wanted, 200, 1000), (Shares{150, 50}));  // as was asked
  EXPECT_EQ(share_kv_budget(wanted, 0, 1000), (Shares{300, 100}));   // all of it fits
  EXPECT_EQ(share_kv_budget(wanted, 0, 400), (Shares{150, 50}));     // half of what is free
  EXPECT_EQ(share_kv_budget(wanted, 0, 0), (Shares{300, 100}));      // not known
  EXPECT_EQ(share_kv_budget(Shares{uint64_t{1} << 62, uint64_t{1} << 62}, 100, 0),
            (Shares{50, 50}));
}

// Weights that come and go, as the test wishes.
struct Sleeper {
  explicit Sleeper(int sleep_ms = 20, bool dies = false) {
    WakingOptions o;
    o.sleep_after = std::chrono::milliseconds(sleep_ms);
    o.load = [this] {
      while (hold) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (fails) fail("/models/x: no such folder");
      ++loads;
      return fresh();
    };
    o.unload = [this](std::unique_ptr<Generator> g) {
      g.reset();
      ++unloads;
    };
    o.say = [this](const std::string& words) {
      const std::lock_guard lock(mutex);
      said += words + "\n";
    };
    auto first = fresh();
    first->dies = dies;
    generator = std::make_unique<WakingGenerator>(std::move(first), std::move(o));
  }
  static std::unique_ptr<FakeGenerator> fresh() {
    return std::make_unique<FakeGenerator>(bundled_tokenizer(), 4, repeats(300));
  }
  bool asleep() const { return generator->state().asleep; }
  std::atomic<bool> hold{false}, fails{false};
  std::atomic<int> loads{0}, unloads{0};
  std::mutex mutex;
  std::string said;
  std::unique_ptr<WakingGenerator> generator;
};

TEST(ServeModels, SleepsAndWakes) {
  Sleeper b;
  FakeGenerator a{bundled_tokenizer(), 4, repeats(100)};
  Serving s({{named("a"), &a}, {named("b"), b.generator.get()}});
  for (int round = 1; round <= 3; ++round) {
    EXPECT_TRUE(eventually([&] { return b.asleep(); }));
    EXPECT_TRUE(eventually([&] { return b.unloads == round; }));
    EXPECT_EQ(s.ask(test::get("/health")).body,
              R"({"status":"ok","models":{"a":"ready","b":"asleep"}})");
    b.hold = true;
    std::vector<std::unique_ptr<Client>> waiting;
    for (int i = 0; i < 3; ++i) {
      waiting.push_back(std::make_unique<Client>(s.port));
      waiting.back()->send(
          test::post("/v1/completions", R"({"prompt":"x","max_tokens":2,"model":"b"})"));
    }
    EXPECT_TRUE(eventually([&] { return b.generator->state().engine.waiting == 3; }));
    EXPECT_EQ(s.ask(test::get("/health")).body,
              R"({"status":"ok","models":{"a":"ready","b":"loading"}})");
    EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":2,"model":"a")").status, 200);
    waiting.back().reset();  // left while it waited
    EXPECT_TRUE(eventually([&] { return b.generator->state().engine.waiting == 2; }));
    b.hold = false;
    waiting.pop_back();
    for (const auto& c : waiting) EXPECT_EQ(answer_model(c->read()), "b");
    EXPECT_EQ(b.loads, round);
    const std::string text = s.ask(test::get("/metrics")).body;  // counters go on
    EXPECT_NE(text.find("generation_tokens_total{model_name=\"b\",model=\"b\"} " +
                        std::to_string(4 * round) + "\n"),
              std::string::npos)
        << text.substr(text.find("generation_tokens_total"), 200);
    EXPECT_NE(text.find("model_loads_total{model_name=\"b\",model=\"b\"} " +
                        std::to_string(round + 1) + "\n"),
              std::string::npos);
  }
  s.server->stop();
  s.join();
  EXPECT_TRUE(b.generator->stop(std::chrono::seconds(5)));
}

// A model that falls asleep gives back what its steps left for the next ones, too.
TEST(ServeModels, SleepGivesWorkspacesBack) {
  { WorkspaceLease()->reserve(1 << 20); }
  Sleeper b;
  FakeGenerator a{bundled_tokenizer(), 4, repeats(100)};
  Serving s({{named("a"), &a}, {named("b"), b.generator.get()}});
  EXPECT_TRUE(eventually([&] {
    const std::lock_guard lock(b.mutex);
    return !b.said.empty();
  }));
  EXPECT_EQ(WorkspaceLease()->capacity(), 0u);
  s.server->stop();
  s.join();
  EXPECT_TRUE(b.generator->stop(std::chrono::seconds(5)));
}

// What cannot be loaded is said to whoever waits; nobody else notices, and the next one tries again.
TEST(ServeModels, AFailureToWakeHarmsNobodyElse) {
  Sleeper b;
  FakeGenerator a{bundled_tokenizer(), 4, repeats(100)};
  Serving s({{named("a"), &a}, {named("b"), b.generator.get()}});
  EXPECT_TRUE(eventually([&] { return b.asleep(); }));
  b.fails = true;
  const Response r = s.completion(R"("prompt":"x","max_tokens":2,"n":2,"model":"b")");
  EXPECT_EQ(r.status, 503);
  EXPECT_NE(s.error(r).find("could not be loaded: /models/x: no such folder"), std::string::npos)
      << s.error(r);
  EXPECT_EQ(r.json().find("error")->find("code")->as_string(), "model_not_loaded");
  const Response stream = s.completion(R"("prompt":"x","max_tokens":2,"stream":true,"model":"b")");
  EXPECT_EQ(stream.status, 503);
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":2,"model":"a")").status, 200);
  b.fails = false;
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":2,"model":"b")").status, 200);
  s.server->stop();
  s.join();
}

// A stream is told that it waits for weights.
TEST(ServeModels, LoadingIsSaidInStreams) {
  Sleeper b;
  ServerOptions options;
  options.ping_time = HttpTime(100);
  Serving s({{named("b"), b.generator.get()}}, options);
  EXPECT_TRUE(eventually([&] { return b.asleep(); }));
  b.hold = true;
  Client client(s.port);
  client.send(test::post("/v1/completions", R"({"prompt":"a","max_tokens":2,"stream":true})"));
  EXPECT_EQ(client.read(true).status, 200);
  EXPECT_NE(client.read_some().find(": loading\n\n"), std::string::npos);
  b.hold = false;
  std::string rest;
  for (std::string more;
       rest.find("[DONE]") == std::string::npos && !(more = client.read_some()).empty();)
    rest += more;
  EXPECT_NE(rest.find("[DONE]"), std::string::npos);
  s.server->stop();
  s.join();
}

// Of an engine that failed, the weights go too; the next request has new ones.
TEST(ServeModels, WakesAfterItsEngineFailed) {
  Sleeper b(60'000, true);
  Serving s({{named("b"), b.generator.get()}});
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":2,"n":2)").status, 500);
  EXPECT_TRUE(eventually([&] { return b.unloads == 1; }));
  EXPECT_EQ(s.completion(R"("prompt":"x","max_tokens":2)").status, 200);
  EXPECT_EQ(b.loads, 1);
  s.server->stop();
  s.join();
}

}  // namespace
}  // namespace moebius::serve_models_test
