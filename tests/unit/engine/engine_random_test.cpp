// SPDX-License-Identifier: Apache-2.0
// Many requests of every sort through an engine that has too little memory: random arrivals,
// lengths, cancels, forks, evictions, preemptions. Every answer is the one of the request alone, and
// at the end nothing is left. Then the same with a fault at every call of the backend in turn, and
// at every allocation in turn.
#include <gtest/gtest.h>

#include "runtime/thread_pool.h"
#include "unit/engine/engine_util.h"
#include "unit/test_util.h"

namespace moebius::engine_random_test {
namespace {

using test::fake_request;
using test::FakeAnswer;
using test::FakeBackend;
using test::FakeEngine;

// Prompts that share beginnings: of a few streams, cut anywhere, with an end of their own.
class Requests {
 public:
  explicit Requests(uint64_t seed) : random_(seed) {
    for (uint64_t i = 0; i < 6; ++i) streams_.push_back(fake_request(420, 1000 + i, 0).prompt);
  }
  size_t below(size_t n) { return random_.below(n); }
  bool one_in(size_t n) { return random_.below(n) == 0; }

  Request next() {
    Request r = fake_request(1 + below(30), random_.next(), below(25));
    if (one_in(5)) {
      r.max_new = below(450);  // grows into what others have
    } else if (!one_in(3)) {
      const auto& stream = streams_[below(streams_.size())];
      const size_t n = below(one_in(4) ? stream.size() : 200);
      r.prompt.insert(r.prompt.begin(), stream.begin(),
                      stream.begin() + static_cast<std::ptrdiff_t>(n));
      if (one_in(6) && n > 0) r.prompt.resize(n);
    }
    if (one_in(10)) r.n = 2 + below(3);
    if (one_in(3)) r.sampling.temperature = 0;
    if (one_in(4)) r.sampling.logprobs = 2;
    if (one_in(3)) r.stop_tokens = {static_cast<int32_t>(below(60))};
    if (one_in(20)) r.ignore_stop = true;
    if (one_in(15)) r.prompt_logprobs = 1;
    if (one_in(8)) r.priority = static_cast<int>(below(5)) - 2;
    if (one_in(5)) r.salt.assign(1, 's');
    r.client = std::to_string(below(3));
    return r;
  }

 private:
  SplitMix64 random_;
  std::vector<std::vector<int32_t>> streams_;
};

struct Sent {
  Request request;
  uint64_t id = 0;
  bool cancelled = false;
  std::vector<FakeAnswer> expected = {};  // of each choice; empty: computed when it is compared
};

void expect_answer(FakeEngine& f, const Sent& s) {
  for (size_t i = 0; i < s.request.n; ++i) {
    const FakeAnswer got = f.of(s.id, i);
    FakeAnswer expected = s.expected.empty() ? f.alone(s.request, i) : s.expected[i];
    ASSERT_NE(got.finish, Finish::kNone) << s.id;
    if (got.finish == Finish::kCancelled) {
      ASSERT_TRUE(s.cancelled);
      ASSERT_LE(got.tokens.size(), expected.tokens.size());
      expected.tokens.resize(got.tokens.size());
      expected.logprobs.resize(got.tokens.size());
    } else {
      ASSERT_EQ(got.finish, expected.finish) << s.id << ": " << got.error;
      if (s.request.prompt_logprobs >= 0 && i == 0) {
        ASSERT_EQ(got.prompt.size(), s.request.prompt.size() - 1);
      }
    }
    ASSERT_EQ(got.tokens, expected.tokens) << s.id << " choice " << i;
    ASSERT_EQ(got.logprobs, expected.logprobs) << s.id << " choice " << i;
  }
}

// What the request answers, with a wrong token where random(percent) says so: for drafts.
std::vector<int32_t> predicted(std::vector<int32_t> answer, size_t percent, SplitMix64& random) {
  for (int32_t& t : answer)
    if (random.below(100) < percent) t = (t + 1) % 60;
  return answer;
}

// How often each happens follows measured times: asked of all runs of a test together.
struct Counts {
  uint64_t preemptions = 0, evictions = 0, drafted = 0, right = 0, right_to_the_end = 0;
};

// drafts: of every step that can have some, from predictions that are right, half right and wrong.
void run_many(Counts& counts, std::vector<KvKind> kinds, uint64_t kv_bytes, size_t count,
              uint64_t seed, ThreadPool* pool, size_t batches = 1, size_t drafts = 0,
              bool by_backend = false) {
  EngineOptions o;
  o.drafts = drafts;
  o.backend_drafts = by_backend;
  o.every_draft = true;
  o.parallel = 6;
  o.kv_bytes = kv_bytes;
  o.context = 600;
  o.prompt_rows = 200;
  o.pool = pool;
  FakeEngine f(std::move(kinds), o);
  f.backend.batches_wanted = batches;
  if (seed % 2 == 0) f.engine->calibrate();
  Requests requests(seed);
  SplitMix64 random(seed);
  std::vector<Sent> open;
  size_t sent = 0;
  while (sent < count || !open.empty()) {
    while (sent < count && open.size() < 16 && !requests.one_in(3)) {
      Sent s{requests.next()};
      if (drafts > 0 && !requests.one_in(4))
        s.request.prediction = predicted(f.alone(s.request).tokens, 50 * requests.below(3), random);
      s.id = f.engine->add(s.request);
      open.push_back(std::move(s));
      ++sent;
    }
    if (!open.empty() && requests.one_in(12)) {
      Sent& s = open[requests.below(open.size())];
      f.engine->cancel(s.id);
      s.cancelled = true;
    }
    const StepReport report = f.step();
    EXPECT_EQ(report.failure, "");
    if (!report.failure.empty()) break;
    std::erase_if(open, [&](const Sent& s) {
      for (size_t i = 0; i < s.request.n; ++i)
        if (f.of(s.id, i).finish == Finish::kNone) return false;
      expect_answer(f, s);
      for (size_t i = 0; i < s.request.n; ++i) f.answers.erase({s.id, i});
      return true;
    });
    if (::testing::Test::HasFatalFailure()) break;
  }
  for (const std::string& v : f.backend.violations) ADD_FAILURE() << v;
  const EngineSnapshot s = f.engine->snapshot();
  EXPECT_TRUE(f.engine->idle());
  EXPECT_EQ(s.kv.used, 0u);
  EXPECT_TRUE(f.clean());
  EXPECT_GT(s.cached_tokens, 0u);
  EXPECT_EQ(f.backend.most_under_way, batches);
  counts.preemptions += s.preemptions;
  counts.evictions += s.evictions;
  counts.drafted += s.drafted_tokens;
  if (drafts == 0) return;
  for (const uint64_t r : s.drafts_right) counts.right += r;
  counts.right_to_the_end += s.drafts_right[drafts - 1];
}

TEST(EngineRandom, TenThousandRequestsAnswerAsEachAlone) {
  ThreadPool pool(2);
  const size_t count = 10000 / test::thinning();
  const std::vector<KvKind> windows = {{"window 100", 500, 100, true},
                                       {"window 300", 400, 300, true}};
  Counts counts;
  run_many(counts, FakeBackend::full(), 7 * 1000, count * 3 / 10, 1, &pool);
  run_many(counts, FakeBackend::full(), 40 * 1000, count / 10, 2, nullptr);
  run_many(counts, FakeBackend::all_kinds(), 16 * 1000, count * 3 / 10, 3, &pool);
  run_many(counts, windows, 9 * 1000, count * 2 / 10, 4, nullptr);
  run_many(counts, {{"state", 300, 1, false}}, 15 * 300, count / 10, 5, &pool);
  EXPECT_GT(counts.preemptions, count / 1000);
  EXPECT_GT(counts.evictions, count / 100);
}

TEST(EngineRandom, DraftsChangeNoAnswer) {
  ThreadPool pool(2);
  Counts counts;
  const size_t count = 10000 / test::thinning();
  const std::vector<KvKind> windows = {{"window 100", 500, 100, true},
                                       {"window 300", 400, 300, true}};
  run_many(counts, FakeBackend::full(), 7 * 1000, count * 3 / 10, 11, &pool, 1, 16);
  run_many(counts, FakeBackend::full(), 40 * 1000, count / 10, 12, nullptr, 1, 1);
  run_many(counts, FakeBackend::all_kinds(), 16 * 1000, count * 3 / 10, 13, &pool, 1, 5);
  run_many(counts, windows, 9 * 1000, count * 2 / 10, 14, nullptr, 1, 16);
  run_many(counts, {{"state", 300, 1, false}}, 15 * 300, count / 10, 15, &pool, 1, 3);
  EXPECT_GT(counts.right, count);
  EXPECT_GT(counts.drafted, counts.right + count / 2);
  EXPECT_GT(counts.right_to_the_end, 0u);
}

TEST(EngineRandom, DraftsOfTheBackendChangeNoAnswer) {
  ThreadPool pool(2);
  Counts counts;
  const size_t count = 3000 / test::thinning();
  const std::vector<KvKind> windows = {{"window 100", 500, 100, true}, {"rows", 400, 2, true}};
  run_many(counts, FakeBackend::full(), 7 * 1000, count, 21, &pool, 1, 16, true);
  run_many(counts, FakeBackend::all_kinds(), 16 * 1000, count, 23, &pool, 1, 5, true);
  run_many(counts, windows, 9 * 1000, count, 24, nullptr, 1, 2, true);
  EXPECT_GT(counts.drafted, 3 * count);  // some are right where the whole text can be read
}

TEST(EngineRandom, SeveralBatchesUnderWayChangeNoAnswer) {
  Counts counts;
  const size_t count = 2000 / test::thinning();
  run_many(counts, FakeBackend::full(), 7 * 1000, count, 6, nullptr, 2);
  run_many(counts, FakeBackend::all_kinds(), 16 * 1000, count, 7, nullptr, 3);
  run_many(counts, FakeBackend::all_kinds(), 60 * 1000, count, 8, nullptr, 4);
}

// A few requests that share, fork, wait for memory and are preempted.
struct Scenario {
  Scenario(std::vector<KvKind> kinds, uint64_t kv_bytes, size_t drafts = 0)
      : f(std::move(kinds), [=] {
          EngineOptions o;
          o.drafts = drafts;
          o.every_draft = true;
          o.parallel = 4;
          o.kv_bytes = kv_bytes;
          o.context = 400;
          return o;
        }()) {
    requests.resize(5);
    requests[0].request = fake_request(120, 1, 40);
    requests[1].request = requests[0].request;
    requests[1].request.prompt.resize(118);
    requests[1].request.n = 2;
    requests[2].request = fake_request(122, 2, 140);
    requests[3].request = fake_request(30, 3, 40);
    requests[3].request.prompt_logprobs = 1;
    requests[4].request = requests[0].request;
    requests[4].request.max_new = 3;
    // The same every time: computed once.
    static std::map<size_t, std::vector<std::vector<FakeAnswer>>> known;  // by sort
    auto& answers = known[f.backend.kv_kinds().size()];
    for (size_t q = 0; q < requests.size(); ++q) {
      if (answers.size() <= q) {
        answers.emplace_back();
        for (size_t i = 0; i < requests[q].request.n; ++i)
          answers[q].push_back(f.alone(requests[q].request, i));
      }
      requests[q].expected = answers[q];
      SplitMix64 random(q);
      if (drafts > 0) requests[q].request.prediction = predicted(answers[q][0].tokens, 20, random);
    }
  }
  void add(size_t i) { requests[i].id = f.engine->add(requests[i].request); }
  // Steps until all is done; what fails is tried again. Returns how many steps failed.
  size_t finish() {
    size_t failed = 0;
    for (size_t steps = 0; !f.engine->idle() && steps < 5000; ++steps)
      failed += f.step().failure.empty() ? 0 : 1;
    return failed;
  }
  size_t run() {
    for (const size_t i : {0u, 1u, 2u, 3u}) add(i);
    const size_t failed = finish();
    add(4);
    return failed + finish();
  }
  void expect_all() {
    for (const Sent& s : requests) expect_answer(f, s);
    for (const std::string& v : f.backend.violations) ADD_FAILURE() << v;
    EXPECT_TRUE(f.clean());
  }
  FakeEngine f;
  std::vector<Sent> requests;
};

TEST(EngineFaults, EveryCallOfTheBackendInTurn) {
  for (const int sort : {0, 1, 2}) {
    const bool all = sort > 0;
    const size_t drafts = sort < 2 ? 0 : 4;
    const auto kinds = all ? FakeBackend::all_kinds() : FakeBackend::full();
    const uint64_t memory = all ? 10 * 1000 : 5 * 1000;
    Scenario whole(kinds, memory, drafts);
    EXPECT_EQ(whole.run(), 0u);
    whole.expect_all();
    EXPECT_GT(whole.f.engine->snapshot().preemptions, 0u);
    const test::FakeFaults calls = whole.f.backend.calls;
    EXPECT_GT(calls.copy, 0);
    EXPECT_EQ(calls.cut > 0,
              drafts > 0);  // what drafts that were wrong left; its failure ends nothing
    size_t failures = 0;
    for (long test::FakeFaults::*call : {&test::FakeFaults::submit, &test::FakeFaults::collect,
                                         &test::FakeFaults::copy, &test::FakeFaults::cut})
      for (long n = 0; n < calls.*call; ++n) {
        SCOPED_TRACE(n);
        Scenario s(kinds, memory, drafts);
        s.f.backend.faults.*call = n;
        s.f.backend.faults.no_memory = n % 2 == 0;
        const size_t failed = s.run();
        EXPECT_LE(failed, 1u);
        failures += failed;
        s.expect_all();
        if (::testing::Test::HasFailure()) return;
      }
    EXPECT_GE(failures, static_cast<size_t>(calls.submit + calls.collect));
  }
}

// Each allocation that the engine makes fails once. A sequence whose own work it hits may end with
// an error; the others answer as ever.
void fail_every_allocation(size_t drafts) {
  long total = 0;
  {
    Scenario s(FakeBackend::full(), 5 * 1000, drafts);
    const test::FailAllocation never(1L << 40);
    s.run();
    total = (1L << 40) - test::allocations_left();
  }
  ASSERT_GT(total, 500);
  long failed_steps = 0, errors = 0, refused = 0;
  for (long n = 0; n < total; ++n) {
    Scenario s(FakeBackend::full(), 5 * 1000, drafts);
    std::optional<test::FailAllocation> failing;
    const auto add = [&](size_t i) {
      try {
        s.add(i);
      } catch (const std::bad_alloc&) {
        ++refused;
        failing.reset();
        s.add(i);  // memory came back
      }
    };
    failing.emplace(n);
    try {
      for (const size_t i : {0u, 1u, 2u, 3u}) add(i);
      failed_steps += static_cast<long>(s.finish());
      add(4);
      failed_steps += static_cast<long>(s.finish());
    } catch (const std::bad_alloc&) {
      // The test's own list of answers; the engine is asked again below.
      failing.reset();
      for (Sent& q : s.requests)
        if (q.id != 0) s.f.engine->cancel(q.id);
      s.finish();
      ASSERT_TRUE(s.f.engine->idle());
      continue;
    }
    failing.reset();
    for (Sent& q : s.requests)
      for (size_t i = 0; i < q.request.n; ++i) {
        const FakeAnswer& got = s.f.of(q.id, i);
        FakeAnswer expected = q.expected[i];
        if (got.finish == Finish::kError) {
          ++errors;
          EXPECT_EQ(got.error, "out of memory");
          ASSERT_LE(got.tokens.size(), expected.tokens.size());
          expected.tokens.resize(got.tokens.size());
        }
        ASSERT_EQ(got.tokens, expected.tokens) << "allocation " << n << ", request " << q.id;
      }
    for (const std::string& v : s.f.backend.violations) ADD_FAILURE() << v;
    ASSERT_TRUE(s.f.clean()) << "allocation " << n << " of " << total;
  }
  std::printf("%ld allocations failed in turn: %ld steps failed, %ld sequences, %ld refused\n",
              total, failed_steps, errors, refused);
  EXPECT_GT(failed_steps, 0);
  EXPECT_GT(errors, 0);
  EXPECT_GT(refused, 0);
}

TEST(EngineFaults, EveryAllocationInTurn) {
  if (!test::allocations_can_fail() || !test::plain_build())
    GTEST_SKIP() << "sanitizers bring an allocator of their own";
  fail_every_allocation(0);
  fail_every_allocation(3);
}

}  // namespace
}  // namespace moebius::engine_random_test
