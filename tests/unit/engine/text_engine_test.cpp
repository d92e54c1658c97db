// SPDX-License-Identifier: Apache-2.0
// The engine with text on a fake backend: texts are those of the tokens, stop strings end answers,
// and a step that fails harms only whom it must.
#include "engine/text_engine.h"

#include <gtest/gtest.h>

#include "device/placement.h"
#include "model/run/decoder.h"
#include "serve/engine_generator.h"
#include "unit/device/guarded_util.h"
#include "unit/engine/engine_util.h"
#include "unit/serve/serve_util.h"
#include "unit/test_util.h"

namespace moebius::text_engine_test {
namespace {

using test::bundled_tokenizer;
using test::FakeBackend;

constexpr size_t kVocab = 4096;
constexpr int32_t kBadToken = 4000;

struct Said {
  std::vector<int32_t> tokens;
  std::string text, stop_text, error;
  std::vector<std::string> pieces;  // of the text, event by event
  Finish finish = Finish::kNone;
};

struct Talk {
  explicit Talk(const Tokenizer* tokenizer = &bundled_tokenizer(), size_t drafts = 0)
      : backend(FakeBackend::all_kinds(), kVocab) {
    EngineOptions options;
    options.drafts = drafts, options.every_draft = true;
    options.context = 2048;
    options.parallel = 4;
    options.clock = [this] { return backend.now; };
    engine = std::make_unique<TextEngine>(backend, tokenizer, options);
  }
  uint64_t ask(uint64_t seed, TextRules rules = {}, size_t max_new = 24) {
    Request r = test::fake_request(40 + seed, seed, max_new, 3000);
    r.text = std::move(rules);
    return engine->add(std::move(r));
  }
  TextStep step() {
    TextStep s = engine->step();
    for (const StepResult& e : s.events) {
      Said& said = all[{e.id, e.index}];
      EXPECT_EQ(said.finish, Finish::kNone) << "an event behind the end";
      if (e.choice) said.tokens.push_back(e.choice->token);
      said.text += e.text;
      said.pieces.push_back(e.text);
      said.stop_text = e.stop_text, said.error = e.error, said.finish = e.finish;
    }
    if (!s.failure.empty()) failures.push_back(s.failure);
    return s;
  }
  void run() {
    while (!engine->idle()) step();
  }
  const Said& of(uint64_t id) { return all[{id, 0}]; }

  FakeBackend backend;
  std::unique_ptr<TextEngine> engine;
  std::map<test::AnswerKey, Said> all;
  std::vector<std::string> failures;
};

// What three requests say when nothing fails.
std::vector<Said> undisturbed() {
  Talk talk;
  for (uint64_t seed = 1; seed <= 3; ++seed) talk.ask(seed);
  talk.run();
  return {talk.of(1), talk.of(2), talk.of(3)};
}

void expect_same(Talk& talk, uint64_t id, const Said& expected) {
  EXPECT_EQ(talk.of(id).tokens, expected.tokens);
  EXPECT_EQ(talk.of(id).text, expected.text);
  EXPECT_EQ(talk.of(id).finish, expected.finish);
  EXPECT_EQ(talk.of(id).error, "");
}

TEST(TextEngine, TextsAreThoseOfTheTokens) {
  for (const Said& said : undisturbed()) {
    EXPECT_EQ(said.text, bundled_tokenizer().decode(said.tokens, true));
    EXPECT_EQ(said.finish, Finish::kLength);
    EXPECT_EQ(said.tokens.size(), 24u);
  }
  Talk tokens_alone(nullptr);
  const uint64_t id = tokens_alone.ask(1);
  tokens_alone.run();
  EXPECT_EQ(tokens_alone.of(id).tokens.size(), 24u);
  EXPECT_EQ(tokens_alone.of(id).text, "");
}

// A step with drafts brings several events: each has its own token's text.
TEST(TextEngine, DraftsBringTheSameEvents) {
  const std::vector<Said> plain = undisturbed();
  TextRules stop;
  stop.stops = {plain[0].text.substr(plain[0].text.size() / 2, 4)};
  Talk stopped, drafted(&bundled_tokenizer(), 6);
  const Said& plain_stopped = stopped.of(stopped.ask(1, stop));
  stopped.run();
  for (uint64_t seed = 1; seed <= 3; ++seed)
    for (const bool stops : {false, true}) {
      Request r = test::fake_request(40 + seed, seed, 24, 3000);
      r.prediction = plain[seed - 1].tokens;
      r.prediction[9] = 5;
      if (stops) r.text = stop;
      const uint64_t id = drafted.engine->add(std::move(r));
      drafted.run();
      const Said& got = drafted.of(id);
      if (stops && seed > 1) continue;
      const Said& expected = stops ? plain_stopped : plain[seed - 1];
      EXPECT_EQ(got.tokens, expected.tokens);
      EXPECT_EQ(got.pieces, expected.pieces);
      EXPECT_EQ(got.finish, expected.finish);
      EXPECT_EQ(got.stop_text, expected.stop_text);
    }
  EXPECT_GT(drafted.engine->engine().snapshot().drafts_right[3], 0u);
}

TEST(TextEngine, AStopStringEndsTheAnswerBeforeIt) {
  const Said whole = undisturbed()[0];
  const size_t at = whole.text.size() / 2;
  size_t begin = at;
  while ((static_cast<unsigned char>(whole.text[begin]) & 0xc0) == 0x80) --begin;
  const std::string stop = whole.text.substr(begin, 3);
  for (const bool include : {false, true}) {
    Talk talk;
    TextRules rules;
    rules.stops = {stop};
    rules.include_stop = include;
    const uint64_t id = talk.ask(1, rules);
    talk.run();
    const size_t first = whole.text.find(stop);
    EXPECT_EQ(talk.of(id).text, whole.text.substr(0, first + (include ? stop.size() : 0)));
    EXPECT_EQ(talk.of(id).stop_text, stop);
    EXPECT_EQ(talk.of(id).finish, Finish::kStop);
    EXPECT_LT(talk.of(id).tokens.size(), whole.tokens.size());
  }
}

TEST(TextEngine, AFailedStepIsTriedAgain) {
  const std::vector<Said> expected = undisturbed();
  for (const bool no_memory : {false, true})
    for (const bool in_submit : {false, true})
      for (const long at : {0, 5})
        for (const long times : {1, 4}) {
          if (times > 1 && (no_memory || at == 0)) continue;
          Talk talk;
          (in_submit ? talk.backend.faults.submit : talk.backend.faults.collect) = at;
          talk.backend.faults.times = times;
          talk.backend.faults.no_memory = no_memory;
          for (uint64_t seed = 1; seed <= 3; ++seed) talk.ask(seed);
          talk.run();
          for (size_t i = 0; i < 3; ++i) expect_same(talk, i + 1, expected[i]);
          const std::string words = no_memory   ? "out of memory"
                                    : in_submit ? "injected fault in submit"
                                                : "injected fault in collect";
          EXPECT_EQ(talk.failures, std::vector<std::string>(static_cast<size_t>(times), words));
          EXPECT_FALSE(talk.engine->dead());
          EXPECT_EQ(talk.backend.violations, std::vector<std::string>());
        }
}

TEST(TextEngine, AnItemThatCannotRunEndsAlone) {
  const std::vector<Said> expected = undisturbed();
  Talk talk;
  talk.backend.bad_token = kBadToken;
  talk.ask(1), talk.ask(2), talk.ask(3);
  Request bad = test::fake_request(30, 9, 10, 3000);
  bad.prompt[17] = kBadToken;
  bad.n = 1;
  talk.step();
  const uint64_t id = talk.engine->add(bad);
  talk.run();
  EXPECT_EQ(talk.of(id).finish, Finish::kError);
  EXPECT_EQ(talk.of(id).error, "this token cannot run");
  for (size_t i = 0; i < 3; ++i) expect_same(talk, i + 1, expected[i]);
  EXPECT_EQ(talk.failures, std::vector<std::string>());
  EXPECT_FALSE(talk.engine->dead());
  EXPECT_EQ(talk.backend.violations, std::vector<std::string>());
}

TEST(TextEngine, AnItemThatCannotRunTakesItsOtherAnswersAlong) {
  Talk talk;
  talk.backend.bad_token = kBadToken;
  Request bad = test::fake_request(300, 9, 10, 3000);
  bad.prompt[290] = kBadToken;
  bad.n = 3;
  const uint64_t id = talk.engine->add(bad);
  talk.run();
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ((talk.all[{id, i}].error), "this token cannot run");
  EXPECT_EQ(talk.backend.violations, std::vector<std::string>());
}

TEST(TextEngine, GivesUpInWordsAfterFailuresInARow) {
  Talk talk;
  talk.backend.faults.collect = 6;
  talk.backend.faults.times = 1000;
  for (uint64_t seed = 1; seed <= 3; ++seed) talk.ask(seed);
  talk.run();
  EXPECT_EQ(talk.failures.size(), TextEngine::kMostFailures);
  EXPECT_TRUE(talk.engine->dead());
  const std::vector<Said> expected = undisturbed();
  for (size_t i = 0; i < 3; ++i) {
    const Said& said = talk.of(i + 1);
    EXPECT_EQ(said.finish, Finish::kError);
    EXPECT_EQ(said.error, "5 steps in a row failed, the last one: injected fault in collect");
    ASSERT_FALSE(said.tokens.empty());  // what it had stays
    EXPECT_TRUE(expected[i].text.starts_with(said.text));
  }
  try {
    talk.ask(4);
    ADD_FAILURE() << "a dead engine takes requests";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "5 steps in a row failed, the last one: injected fault in collect");
  }
  EXPECT_TRUE(talk.step().events.empty());
}

// The others' answers are those of an undisturbed engine, and the next request is served.
TEST(TextEngine, WhereMemoryStaysShortTheYoungestEnds) {
  const std::vector<Said> expected = undisturbed();
  for (const long times : {5, 10}) {
    Talk talk;
    talk.backend.faults.collect = 6;
    talk.backend.faults.times = times;
    talk.backend.faults.no_memory = true;
    for (uint64_t seed = 1; seed <= 3; ++seed) talk.ask(seed);
    talk.run();
    EXPECT_EQ(talk.failures.size(), static_cast<size_t>(times));
    EXPECT_FALSE(talk.engine->dead());
    const size_t ended = static_cast<size_t>(times) / TextEngine::kMostFailures;
    for (size_t i = 0; i < 3; ++i) {
      if (i + ended < 3) {
        expect_same(talk, i + 1, expected[i]);
      } else {
        EXPECT_EQ(talk.of(i + 1).finish, Finish::kError);
        EXPECT_EQ(talk.of(i + 1).error, "out of memory");
        EXPECT_TRUE(expected[i].text.starts_with(talk.of(i + 1).text));
      }
    }
    EXPECT_EQ(talk.engine->engine().snapshot().kv.blocks_used, 0u);
    const uint64_t again = talk.ask(1);
    talk.run();
    expect_same(talk, again, expected[0]);
    EXPECT_EQ(talk.backend.violations, std::vector<std::string>());
  }
}

TEST(TextEngine, GivesUpAtOnceWhenTheBackendIsLost) {
  Talk talk;
  talk.backend.faults.collect = 3;
  talk.backend.faults.lost = true;
  talk.ask(1);
  talk.run();
  EXPECT_EQ(talk.failures.size(), 1u);
  EXPECT_TRUE(talk.engine->dead());
  EXPECT_EQ(talk.of(1).error, "the model can run no more steps: injected fault in collect");
}

TEST(TextEngine, WhatAFailedStepHadToSayIsSaid) {
  Talk talk;
  const uint64_t a = talk.ask(1), b = talk.ask(2);
  talk.step();
  talk.engine->cancel(a);
  talk.backend.faults.submit = talk.backend.calls.submit;
  const TextStep failed = talk.step();
  EXPECT_EQ(failed.failure, "injected fault in submit");
  EXPECT_EQ(talk.of(a).finish, Finish::kCancelled);
  talk.run();
  expect_same(talk, b, undisturbed()[1]);
}

// --- the server over it ---------------------------------------------------------------------------

struct EngineServer {
  explicit EngineServer(TextEngine& engine) : generator(engine, {}) {
    ServerOptions options;
    options.port = 0;
    server = std::make_unique<ApiServer>(options);
    port = server->listen();
    server->ready(test::served_model(4), generator);
    thread = std::thread([this] { status = server->run(); });
  }
  ~EngineServer() {
    server->stop();
    if (thread.joinable()) thread.join();
    generator.stop(std::chrono::seconds(10));
  }
  test::Response ask(const std::string& bytes) const {
    test::Client client(port);
    client.send(bytes);
    return client.read();
  }
  EngineGenerator generator;
  std::unique_ptr<ApiServer> server;
  uint16_t port = 0;
  std::thread thread;
  int status = -1;
};

const char* const kQuestion =
    R"({"prompt":"It was a dark night","max_tokens":20,"seed":7,"temperature":1,"ignore_eos":true})";

std::string answer_of(const test::Response& r) {
  const size_t at = r.body.find("\"text\"");
  return at == std::string::npos ? r.body : r.body.substr(at, r.body.find("\"logprobs\"", at) - at);
}

TEST(ServeEngine, AStreamOutlivesAFailedStep) {
  std::string expected;
  {
    Talk talk;
    const EngineServer server(*talk.engine);
    const test::Response r = server.ask(test::post("/v1/completions", kQuestion));
    ASSERT_EQ(r.status, 200) << r.body;
    expected = answer_of(r);
  }
  Talk talk;
  EngineServer server(*talk.engine);
  talk.backend.faults.collect = 4;
  talk.backend.faults.times = 2;
  const test::Response r = server.ask(test::post("/v1/completions", kQuestion));
  EXPECT_EQ(r.status, 200) << r.body;
  EXPECT_EQ(answer_of(r), expected);
  EXPECT_EQ(server.ask(test::get("/health")).status, 200);
  EXPECT_FALSE(server.generator.dead());
}

// A form reaches the engine: whatever the backend says, the answers have it.
TEST(ServeEngine, AnswersHaveTheirForm) {
  Talk talk;
  const EngineServer server(*talk.engine);
  const test::Response r = server.ask(test::post(
      "/v1/completions",
      R"({"prompt":"a","max_tokens":40,"seed":3,"n":3,"logprobs":1,"guided_choice":["yes","no"]})"));
  ASSERT_EQ(r.status, 200) << r.body;
  const Json answer = r.json();
  for (const Json& c : answer.find("choices")->items()) {
    const std::string& text = c.find("text")->as_string();
    EXPECT_TRUE(text == "yes" || text == "no") << text;
    EXPECT_EQ(c.find("finish_reason")->as_string(), "stop");
  }
}

// `prediction` changes the speed of an answer and its usage, nothing else; `speculate` says how many.
TEST(ServeEngine, APredictionGivesTheSameAnswer) {
  Talk talk(&bundled_tokenizer(), 6);
  const EngineServer server(*talk.engine);
  const auto ask = [&](const std::string& more) {
    return server.ask(test::post("/v1/completions", std::string(kQuestion).insert(1, more)));
  };
  const test::Response plain = ask("");
  ASSERT_EQ(plain.status, 200) << plain.body;
  const std::string text = plain.json().find("choices")->items()[0].find("text")->as_string();
  const std::string prediction =
      "\"prediction\":{\"type\":\"content\",\"content\":" + Json(text).dump() + "},";
  const auto details = [](const test::Response& r, const char* name) {
    return r.json().find("usage")->find("completion_tokens_details")->find(name)->as_int();
  };
  const test::Response predicted = ask(prediction);
  ASSERT_EQ(predicted.status, 200) << predicted.body;
  EXPECT_EQ(answer_of(predicted), answer_of(plain));
  EXPECT_GT(details(predicted, "accepted_prediction_tokens"), 2);
  const test::Response off = ask(prediction + "\"speculate\":false,");
  EXPECT_EQ(answer_of(off), answer_of(plain));
  EXPECT_EQ(details(off, "accepted_prediction_tokens"), 0);
  EXPECT_EQ(details(off, "rejected_prediction_tokens"), 0);
  const test::Response one = ask(prediction + "\"speculate\":{\"max\":1},");
  EXPECT_EQ(answer_of(one), answer_of(plain));
  EXPECT_GT(details(one, "accepted_prediction_tokens"), 0);
  const std::pair<const char*, const char*> bad[] = {
      {"\"prediction\":3,", "prediction"},
      {"\"prediction\":{\"type\":\"x\",\"content\":\"a\"},", "prediction.type"},
      {"\"prediction\":{\"type\":\"content\"},", "prediction.content"},
      {"\"speculate\":{\"max\":17},", "speculate.max"},
      {"\"speculate\":\"much\",", "speculate"}};
  for (const auto& [field, param] : bad) {
    const test::Response r = ask(field);
    EXPECT_EQ(r.status, 400) << field << r.body;
    EXPECT_NE(r.body.find(param), std::string::npos) << r.body;
  }
}

TEST(ServeEngine, EndsWithStatus3WhenTheModelIsLost) {
  Talk talk;
  EngineServer server(*talk.engine);
  talk.backend.faults.collect = 4;
  talk.backend.faults.lost = true;
  const test::Response r = server.ask(test::post("/v1/completions", kQuestion));
  EXPECT_EQ(r.status, 500);
  EXPECT_NE(r.body.find("the model can run no more steps: injected fault in collect"),
            std::string::npos)
      << r.body;
  server.thread.join();
  EXPECT_EQ(server.status, 3);
}

// The bundled model behind the server, on devices of its own.
struct PlacedModel {
  explicit PlacedModel(const char* placement) {
    ModelOptions options;
    options.pool = &pool;
    options.placement = parse_placement(placement);
    model = DecoderModel::load(checkpoint, options);
    EngineOptions engine_options;
    engine_options.context = 512;
    engine_options.parallel = 4;
    engine = std::make_unique<TextEngine>(*model, &bundled_tokenizer(), engine_options);
  }
  ThreadPool pool{2};
  Checkpoint checkpoint = Checkpoint::open(test::bundled_model_dir().string());
  std::unique_ptr<DecoderModel> model;
  std::unique_ptr<TextEngine> engine;
};

TEST(ServeEngine, OtherDevicesAnswerAsTheCpu) {
  std::string expected;
  for (const char* placement : {"cpu", "guarded", "ends=guarded,attention=guarded,experts=cpu",
                                "ends=cpu,attention=cpu,experts=guarded"}) {
    PlacedModel placed(placement);
    const EngineServer server(*placed.engine);
    std::vector<std::string> answers(4);  // of requests that run together
    std::vector<std::thread> clients;
    for (std::string& a : answers)
      clients.emplace_back(
          [&] { a = answer_of(server.ask(test::post("/v1/completions", kQuestion))); });
    for (std::thread& c : clients) c.join();
    for (const std::string& a : answers) {
      if (expected.empty()) expected = a;
      EXPECT_EQ(a, expected) << placement;
    }
  }
  EXPECT_NE(expected.find("\"text\""), std::string::npos) << expected;
}

TEST(ServeEngine, ADeviceThatFailsOrIsLost) {
  PlacedModel placed("guarded");
  EngineServer server(*placed.engine);
  const auto ask = [&] { return server.ask(test::post("/v1/completions", kQuestion)); };
  const test::Response before = ask();
  ASSERT_EQ(before.status, 200) << before.body;
  guarded_faults().operation = 40;  // one step fails and is tried again
  const test::Response after = ask();
  guarded_faults().operation = -1;
  EXPECT_EQ(answer_of(after), answer_of(before));
  guarded_faults().loss = 40;
  const test::Response lost = ask();
  guarded_faults().loss = -1;
  EXPECT_EQ(lost.status, 500);
  EXPECT_NE(lost.body.find("the device guarded is lost"), std::string::npos) << lost.body;
  server.thread.join();
  EXPECT_EQ(server.status, 3);
}

}  // namespace
}  // namespace moebius::text_engine_test
