// SPDX-License-Identifier: Apache-2.0
// The engine on a fake backend: what each promise of engine.h means, one by one.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <thread>

#include "runtime/thread_pool.h"
#include "unit/engine/engine_util.h"

namespace moebius::engine_test {
namespace {

using test::fake_request;
using test::FakeBackend;
using test::FakeEngine;

EngineOptions options_for(size_t parallel, uint64_t kv_bytes = 1000 * 1000, size_t context = 2000) {
  EngineOptions o;
  o.parallel = parallel;
  o.kv_bytes = kv_bytes;
  o.context = context;
  return o;
}

TEST(Engine, AnswersAreThoseOfTheRequestAlone) {
  for (const bool kinds : {false, true}) {
    FakeEngine f(kinds ? FakeBackend::all_kinds() : FakeBackend::full(), options_for(8));
    std::vector<Request> requests;
    for (size_t i = 0; i < 8; ++i) requests.push_back(fake_request(1 + 90 * i, i, 40 + 20 * i));
    std::vector<uint64_t> ids;
    for (const Request& r : requests) ids.push_back(f.engine->add(r));
    f.run();
    for (size_t i = 0; i < ids.size(); ++i) {
      EXPECT_EQ(f.of(ids[i]).tokens, f.alone(requests[i]).tokens);
      EXPECT_EQ(f.of(ids[i]).finish, Finish::kLength);
    }
    EXPECT_TRUE(f.clean());
  }
}

// The pieces of a prompt follow each other without waiting, and sequences are shared out evenly.
TEST(Engine, BatchesAreKeptInFlight) {
  EngineOptions o = options_for(8);
  o.prompt_rows = 100;
  FakeEngine f(FakeBackend::full(), o);
  f.backend.batches_wanted = 3;
  const Request one = fake_request(700, 1, 5);
  const uint64_t id = f.engine->add(one);
  f.step();
  EXPECT_EQ(f.backend.most_under_way, 3u);
  f.run();
  EXPECT_EQ(f.of(id).tokens, f.alone(one).tokens);
  for (uint64_t i = 0; i < 6; ++i) f.engine->add(fake_request(1, i, 100));
  for (size_t i = 0; i < 10; ++i) {
    const StepReport r = f.step();
    EXPECT_EQ(r.results.size(), 2u) << i;
  }
  f.engine->cancel(1);
  f.run();
  EXPECT_TRUE(f.clean());
}

TEST(Engine, StopTokensEndAndAreReported) {
  FakeEngine f(FakeBackend::full(), options_for(4));
  Request r = fake_request(20, 5, 200);
  r.stop_tokens = {3, 9};
  const auto expected = f.alone(r);
  ASSERT_EQ(expected.finish, Finish::kStop);
  Request ignores = r;
  ignores.ignore_stop = true;
  const uint64_t a = f.engine->add(r), b = f.engine->add(ignores);
  f.run();
  EXPECT_EQ(f.of(a).tokens, expected.tokens);
  EXPECT_EQ(f.of(a).finish, Finish::kStop);
  EXPECT_EQ(f.of(b).tokens.size(), 200u);
  EXPECT_TRUE(f.clean());
}

TEST(Engine, CancelTakesEffectBeforeTheNextStep) {
  FakeEngine f(FakeBackend::full(), options_for(2));
  const Request stays = fake_request(300, 1, 50);
  const uint64_t running = f.engine->add(fake_request(30, 2, 50));
  const uint64_t neighbour = f.engine->add(stays);
  const uint64_t queued = f.engine->add(fake_request(30, 3, 50));
  f.step();
  f.step();
  f.engine->cancel(running);
  f.engine->cancel(queued);
  f.engine->cancel(12345);  // nobody
  const size_t had = f.of(running).tokens.size();
  const StepReport report = f.step();
  EXPECT_EQ(f.of(running).finish, Finish::kCancelled);
  EXPECT_EQ(f.of(running).tokens.size(), had);
  EXPECT_EQ(f.of(queued).finish, Finish::kCancelled);
  EXPECT_EQ(report.figures.batch, 1u);
  f.run();
  EXPECT_EQ(f.of(neighbour).tokens, f.alone(stays).tokens);
  EXPECT_TRUE(f.clean());
}

TEST(Engine, RequestsComeWhileOthersRun) {
  FakeEngine f(FakeBackend::all_kinds(), options_for(4));
  std::vector<Request> requests;
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < 12; ++i) {
    requests.push_back(fake_request(50 + 37 * i, 100 + i, 30));
    ids.push_back(f.engine->add(requests.back()));
    f.step();
    f.step();
  }
  f.run();
  for (size_t i = 0; i < ids.size(); ++i)
    EXPECT_EQ(f.of(ids[i]).tokens, f.alone(requests[i]).tokens) << i;
  EXPECT_TRUE(f.clean());
}

TEST(Engine, RefusesInWords) {
  FakeEngine f(FakeBackend::full(), options_for(2, 5000, 2000));  // five blocks
  const auto refusal = [&](Request r) -> std::string {
    try {
      f.engine->add(std::move(r));
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal(fake_request(0, 1, 1)).find("empty"), std::string::npos);
  EXPECT_NE(refusal(fake_request(2000, 1, 1)).find("--ctx"), std::string::npos);
  EXPECT_NE(refusal(fake_request(640, 1, 1)).find("5000 bytes for keys and values hold 640"),
            std::string::npos);
  Request many = fake_request(3, 1, 1);
  many.n = 3;
  EXPECT_NE(refusal(many).find("3 answers"), std::string::npos);
  Request unknown = fake_request(3, 1, 1);
  unknown.prompt[1] = 64;
  EXPECT_NE(refusal(unknown).find("token 64"), std::string::npos);
  Request hot = fake_request(3, 1, 1);
  hot.sampling.temperature = 1000;
  EXPECT_NE(refusal(hot).find("temperature"), std::string::npos);
  EXPECT_TRUE(f.engine->idle());
  // What fits goes until memory is full, and says so.
  const Request r = fake_request(600, 4, SIZE_MAX);
  const uint64_t id = f.engine->add(r);
  f.run();
  EXPECT_EQ(f.of(id).tokens.size(), 40u);
  EXPECT_EQ(f.of(id).finish, Finish::kContext);
  EXPECT_EQ(f.of(id).tokens, f.alone(r).tokens);
  EXPECT_THROW(FakeEngine(FakeBackend::full(), options_for(1, 999)), Error);
  EXPECT_TRUE(f.clean());
}

TEST(Engine, ASequenceWithoutFiniteLogitsEndsAlone) {
  FakeEngine f(FakeBackend::full(), options_for(4));
  f.backend.nan_token = 61;
  const Request good = fake_request(100, 1, 60);
  Request bad = fake_request(100, 2, 60);
  bad.prompt[50] = 61;
  bad.n = 2;
  const uint64_t a = f.engine->add(good), b = f.engine->add(bad);
  f.run();
  EXPECT_EQ(f.of(a).tokens, f.alone(good).tokens);
  for (const size_t index : {0u, 1u}) {
    EXPECT_EQ(f.of(b, index).finish, Finish::kError);
    EXPECT_TRUE(f.of(b, index).tokens.empty());
    EXPECT_NE(f.of(b, index).error.find("no finite logit"), std::string::npos);
  }
  EXPECT_EQ(f.engine->snapshot().finished[static_cast<size_t>(Finish::kError)], 2u);
  EXPECT_TRUE(f.clean());
}

TEST(Engine, AWatchEndsItsOwnSequence) {
  FakeEngine f(FakeBackend::full(), options_for(4));
  const Request good = fake_request(10, 1, 60);
  Request stops = fake_request(10, 2, 60), throws = fake_request(10, 3, 60);
  size_t seen = 0;
  stops.watch = [&](size_t, const TokenChoice&) { return ++seen < 5; };
  throws.watch = [](size_t, const TokenChoice&) -> bool { throw Error("the grammar is stuck"); };
  const uint64_t a = f.engine->add(good), b = f.engine->add(stops), c = f.engine->add(throws);
  f.run();
  EXPECT_EQ(f.of(a).tokens, f.alone(good).tokens);
  EXPECT_EQ(f.of(b).tokens.size(), 5u);
  EXPECT_EQ(f.of(b).finish, Finish::kStop);
  EXPECT_EQ(f.of(c).finish, Finish::kError);
  EXPECT_EQ(f.of(c).error, "the grammar is stuck");
  EXPECT_TRUE(f.clean());
}

TEST(Engine, AFailedStepChangesNothingAndTheNextOneGoesOn) {
  for (const bool no_memory : {false, true})
    for (long at = 0; at < 12; ++at) {
      FakeEngine f(FakeBackend::all_kinds(), options_for(3));
      f.backend.faults.collect = at;
      f.backend.faults.no_memory = no_memory;
      std::vector<Request> requests = {fake_request(250, 1, 30), fake_request(60, 2, 30),
                                       fake_request(127, 3, 30)};
      std::vector<uint64_t> ids;
      for (const Request& r : requests) ids.push_back(f.engine->add(r));
      size_t failures = 0;
      while (!f.engine->idle()) {
        const StepReport r = f.step();
        if (r.failure.empty()) continue;
        ++failures;
        EXPECT_EQ(r.failure, no_memory ? "out of memory" : "injected fault in collect");
        EXPECT_TRUE(r.results.empty());
      }
      EXPECT_EQ(failures, 1u);
      EXPECT_EQ(f.engine->snapshot().failed_steps, 1u);
      for (size_t i = 0; i < ids.size(); ++i)
        EXPECT_EQ(f.of(ids[i]).tokens, f.alone(requests[i]).tokens);
      EXPECT_TRUE(f.clean());
    }
}

TEST(Engine, AFailedCutMeansComputingAgain) {
  FakeEngine f(FakeBackend::full(), options_for(2));
  f.backend.faults.collect = 2;
  f.backend.faults.cut = 0;
  const Request r = fake_request(60, 2, 30);
  const uint64_t id = f.engine->add(r);
  while (!f.engine->idle()) f.step();
  EXPECT_EQ(f.of(id).tokens, f.alone(r).tokens);
  EXPECT_TRUE(f.clean());
}

TEST(Engine, ForksAnswerAsTheirSeedsAlone) {
  for (const size_t length : {5u, 128u, 200u, 385u}) {
    FakeEngine f(FakeBackend::all_kinds(), options_for(8));
    Request r = fake_request(length, 7, 200);
    r.n = 4;
    r.stop_tokens = {11};
    const Request neighbour = fake_request(90, 8, 300);
    const uint64_t a = f.engine->add(r), b = f.engine->add(neighbour);
    f.run();
    for (size_t i = 0; i < 4; ++i) EXPECT_EQ(f.of(a, i).tokens, f.alone(r, i).tokens) << i;
    EXPECT_NE(f.of(a, 0).tokens, f.of(a, 1).tokens);
    EXPECT_EQ(f.of(b).tokens, f.alone(neighbour).tokens);
    Request one = r;
    one.n = 1;
    EXPECT_EQ(f.of(a, 0).tokens, f.alone(one).tokens);  // the seed itself
    EXPECT_EQ(f.backend.rows, length + 90 + f.engine->snapshot().new_tokens - 5);  // prompt once
    EXPECT_TRUE(f.clean());
  }
}

TEST(Engine, TheNextTurnOfAChatRunsOnlyNewTokens) {
  FakeEngine f(FakeBackend::all_kinds(), options_for(1));
  Request first = fake_request(300, 1, 77);
  const uint64_t a = f.engine->add(first);
  f.run();
  Request second = first;
  second.prompt.insert(second.prompt.end(), f.of(a).tokens.begin(), f.of(a).tokens.end());
  for (int i = 0; i < 20; ++i) second.prompt.push_back(i);
  const size_t before = f.backend.rows;
  const uint64_t b = f.engine->add(second);
  f.run();
  EXPECT_EQ(f.of(b).cached, 300u + 76u);  // the last token was drawn and never run
  EXPECT_EQ(f.backend.rows - before, 21u + 76u);
  EXPECT_EQ(f.of(b).tokens, f.alone(second).tokens);
  Request salted = second;
  salted.salt = "another key";
  const uint64_t c = f.engine->add(salted);
  f.run();
  EXPECT_EQ(f.of(c).cached, 0u);
  EXPECT_EQ(f.of(c).tokens, f.of(b).tokens);
  EXPECT_EQ(f.engine->snapshot().cached_tokens, 376u);
  EXPECT_TRUE(f.clean());
}

TEST(Engine, TooLittleMemoryForAllMeansWaitingAndComputingAgain) {
  // Ten blocks, four sequences that grow to five each.
  EngineOptions o = options_for(4, 10 * 1000);
  FakeEngine f(FakeBackend::full(), o);
  std::vector<Request> requests;
  std::vector<uint64_t> ids;
  for (size_t i = 0; i < 4; ++i) {
    requests.push_back(fake_request(60, 40 + i, 500));
    ids.push_back(f.engine->add(requests[i]));
  }
  f.run();
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(f.of(ids[i]).tokens, f.alone(requests[i]).tokens) << i;
    EXPECT_EQ(f.of(ids[i]).finish, Finish::kLength);
  }
  const EngineSnapshot s = f.engine->snapshot();
  EXPECT_GT(s.preemptions, 0u);
  EXPECT_LE(s.preemptions, 3 * 4u);
  EXPECT_TRUE(f.clean());
}

TEST(Engine, LogProbabilitiesOfPromptTokensComeInPieces) {
  FakeEngine f(FakeBackend::full(), options_for(4));
  Request r = fake_request(150, 3, 5);
  r.prompt_logprobs = 3;
  r.sampling.logprobs = 2;
  const uint64_t warm = f.engine->add(fake_request(150, 3, 5));
  f.run();
  for (const uint64_t id : {f.engine->add(r), f.engine->add(r)}) {
    size_t most = 0;
    while (f.of(id).finish == Finish::kNone) most = std::max(most, f.step().figures.prompt_rows);
    EXPECT_LE(most, 64u);            // 32 rows of each
    EXPECT_EQ(f.of(id).cached, 0u);  // every row is wanted
    ASSERT_EQ(f.of(id).prompt.size(), 149u);
    for (size_t i = 0; i < 149; ++i) {
      const std::vector<float> row = f.backend.row(std::span(r.prompt).first(i + 1));
      double sum = 0;
      for (const float v : row) sum += std::exp(static_cast<double>(v));
      const TokenChoice& c = f.of(id).prompt[i];
      EXPECT_EQ(c.token, r.prompt[i + 1]);
      EXPECT_NEAR(c.logprob, row[static_cast<size_t>(c.token)] - std::log(sum), 1e-5);
      ASSERT_EQ(c.alternatives.size(), 3u);
      EXPECT_GE(c.alternatives[0].second, c.alternatives[1].second);
      EXPECT_EQ(c.alternatives[0].first, std::max_element(row.begin(), row.end()) - row.begin());
    }
    EXPECT_EQ(f.of(id).tokens, f.of(warm).tokens);
  }
  // No answer at all, only the prompt's rows.
  r.max_new = 0;
  const uint64_t none = f.engine->add(r);
  f.run();
  EXPECT_EQ(f.of(none).prompt.size(), 149u);
  EXPECT_TRUE(f.of(none).tokens.empty());
  EXPECT_EQ(f.of(none).finish, Finish::kLength);
  EXPECT_TRUE(f.clean());
}

TEST(Engine, ClientsTakeTurnsAndPriorityGoesFirst) {
  FakeEngine f(FakeBackend::full(), options_for(1));
  const auto add = [&](const char* client, int priority) {
    Request r = fake_request(50, 1 + f.answers.size(), 2);
    r.client = client;
    r.salt = std::to_string(f.backend.rows + f.engine->prompt_left());  // no shared prefixes
    r.priority = priority;
    return f.engine->add(std::move(r));
  };
  const uint64_t a1 = add("a", 0), a2 = add("a", 0), a3 = add("a", 0), b1 = add("b", 0),
                 urgent = add("c", -1);
  std::vector<uint64_t> order;
  while (!f.engine->idle())
    for (const StepResult& r : f.step().results)
      if (r.finish != Finish::kNone) order.push_back(r.id);
  EXPECT_EQ(order, (std::vector<uint64_t>{urgent, a1, b1, a2, a3}));
  EXPECT_TRUE(f.clean());
}

TEST(Engine, AddAndCancelFromOtherThreads) {
  FakeEngine f(FakeBackend::full(), options_for(8));
  ThreadPool pool(2);
  EngineOptions o = options_for(8);
  o.pool = &pool;
  o.freed = [&](size_t k, BlockId id) { f.backend.freed(k, id); };
  Engine engine(f.backend, o);
  std::atomic<size_t> adders{4};
  std::vector<std::thread> threads;
  for (size_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (size_t i = 0; i < 30; ++i) {
        const uint64_t id = engine.add(fake_request(1 + (t * 31 + i * 17) % 200, 30 * t + i, 20));
        if (i % 3 == 0) engine.cancel(id);
        (void)engine.snapshot();
      }
      --adders;
      engine.wake();
    });
  std::map<test::AnswerKey, size_t> ends;
  while (adders > 0 || !engine.idle()) {
    engine.wait(std::chrono::seconds(10));
    const StepReport report = engine.step();
    ASSERT_EQ(report.failure, "");
    for (const StepResult& r : report.results)
      if (r.finish != Finish::kNone) ++ends[{r.id, r.index}];
  }
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(ends.size(), 120u);
  for (const auto& [key, times] : ends) EXPECT_EQ(times, 1u);
  EXPECT_EQ(engine.snapshot().running, 0u);
  EXPECT_TRUE(f.backend.violations.empty());
}

TEST(Engine, StatisticsAddUp) {
  FakeEngine f(FakeBackend::full(), options_for(2));
  const uint64_t a = f.engine->add(fake_request(200, 1, 10));
  f.engine->add(fake_request(20, 2, 10));
  size_t prompt = 0, decode = 0;
  uint64_t time = 0;
  while (!f.engine->idle()) {
    const StepReport r = f.step();
    prompt += r.figures.prompt_rows;
    decode += r.figures.decode_rows;
    time += r.figures.nanoseconds;
    EXPECT_EQ(r.figures.backend.rows, r.figures.prompt_rows + r.figures.decode_rows);
    EXPECT_EQ(f.engine->snapshot().last.batch, r.figures.batch);
  }
  const EngineSnapshot s = f.engine->snapshot();
  EXPECT_EQ(prompt + decode, f.backend.rows);
  EXPECT_EQ(s.prompt_tokens, 220u);
  EXPECT_EQ(s.new_tokens, 20u);
  EXPECT_EQ(s.step_nanoseconds, time);
  EXPECT_EQ(time, f.backend.now);
  EXPECT_EQ(s.expert_rows, std::vector<uint64_t>(4, f.backend.rows));
  EXPECT_EQ(s.finished[static_cast<size_t>(Finish::kLength)], 2u);
  EXPECT_EQ(s.kv.used, 0u);
  EXPECT_EQ(s.kv.cached, 3000u);  // a block, and two tails
  EXPECT_EQ(s.kv.tails, 2u);
  EXPECT_EQ(s.kv.blocks_cached + s.kv.blocks_free, 1000u);
  EXPECT_EQ(f.of(a).tokens.size(), 10u);
}

TEST(Engine, MemoryCanBeCommittedAtTheStart) {
  FakeEngine f(FakeBackend::full(), options_for(2, 7500));
  f.engine->commit_memory();
  EXPECT_EQ(f.backend.committed, 7u);
  f.backend.faults.commit = 1;
  EXPECT_THROW(f.engine->commit_memory(), Error);
  EXPECT_TRUE(f.clean());
}

}  // namespace
}  // namespace moebius::engine_test
