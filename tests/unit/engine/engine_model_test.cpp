// SPDX-License-Identifier: Apache-2.0
// The engine on real layers: some hundred requests on tiny folders with shared prefixes, forks,
// cancels and too little memory, on one thread and on two; tokens and log-probabilities equal those
// of each request alone. Sequences draft what they can, from their own text and from predictions with
// some wrong tokens; alone they do not.
#include <gtest/gtest.h>

#include <map>

#include "engine/engine.h"
#include "model/run/decoder.h"
#include "runtime/thread_pool.h"
#include "unit/engine/engine_util.h"
#include "unit/test_util.h"

namespace moebius::engine_model_test {
namespace {

using test::AnswerKey;
using test::answers_of;
using test::FakeAnswer;

constexpr size_t kContext = 400;

std::vector<Request> mixed_requests(size_t count, size_t vocab, uint64_t seed) {
  SplitMix64 random(seed);
  const auto stream = test::fake_request(330, 99, 0, vocab).prompt;
  std::vector<Request> out;
  for (size_t i = 0; i < count; ++i) {
    Request r = test::fake_request(1 + random.below(30), seed + i, 1 + random.below(12), vocab);
    if (random.below(2) == 0)
      r.prompt.insert(r.prompt.begin(), stream.begin(),
                      stream.begin() + static_cast<std::ptrdiff_t>(random.below(stream.size())));
    if (random.below(6) == 0) r.n = 2;
    if (random.below(8) == 0) r.max_new = 80;
    r.sampling.logprobs = 1;
    if (random.below(3) == 0) r.sampling.temperature = 0;
    out.push_back(std::move(r));
  }
  return out;
}

// How prompts are cut, whether one comes too early for what another leaves, how many steps there are (in
// which some are cancelled) and which have room for drafts follow measured times: these counts are asked of
// all folders together.
struct Sums {
  uint64_t cached = 0, drafted = 0, right = 0, cancelled = 0;
};

void compare(const std::string& folder, size_t count, XType type, Sums& sums,
             const char* placement = "cpu") {
  SCOPED_TRACE(folder);
  const Checkpoint checkpoint =
      Checkpoint::open((test::test_data_dir() / "golden" / folder).string());
  ThreadPool two(2), one(1);
  ModelOptions options;
  options.context = kContext;
  options.type = type;
  options.pool = &two;
  options.placement = parse_placement(placement);
  const auto model = DecoderModel::load(checkpoint, options);
  options.placement = {};
  options.pool = &one;
  const auto alone_model = DecoderModel::load(checkpoint, options);
  std::vector<Request> requests = mixed_requests(count, model->vocab(), 17);
  std::vector<std::map<AnswerKey, FakeAnswer>> expected;
  for (size_t q = 0; q < requests.size(); ++q) {
    EngineOptions alone;
    alone.context = kContext;
    alone.parallel = 2;
    alone.prompt_rows = 7 + q % 100;
    Engine single(*alone_model, alone);
    expected.push_back(answers_of(single, {requests[q]}));
    if (q % 3 == 0) continue;
    requests[q].prediction = expected[q].at({0, 0}).tokens;
    for (size_t i = q % 5; i < requests[q].prediction.size(); i += 5) requests[q].prediction[i] = 1;
  }

  EngineOptions tight;
  tight.drafts = 4, tight.every_draft = true;
  tight.context = kContext;
  tight.parallel = 6;
  tight.pool = &two;
  tight.kv_bytes = 9 * kv_bytes_of(model->kv_kinds(), 1);
  Engine engine(*model, tight);
  engine.calibrate();
  SplitMix64 random(3);
  const auto got = answers_of(engine, requests, 24, [&](const test::UnderWay& index) {
    if (random.below(25) != 0 || index.empty()) return;
    engine.cancel(
        std::next(index.begin(), static_cast<std::ptrdiff_t>(random.below(index.size())))->first);
  });
  const EngineSnapshot s = engine.snapshot();
  sums.cached += s.cached_tokens;
  sums.drafted += s.drafted_tokens;
  sums.right += s.drafts_right[0];
  if (test::thinning() == 1) {
    EXPECT_GT(s.evictions, 0u);
  }
  EXPECT_EQ(s.kv.used, 0u);
  engine.clear_cache();
  EXPECT_EQ(engine.kv().blocks().used_bytes(), 0u);

  for (size_t q = 0; q < requests.size(); ++q) {
    for (size_t i = 0; i < requests[q].n; ++i) {
      const FakeAnswer& g = got.at({q, i});
      FakeAnswer e = expected[q].at({0, i});
      if (g.finish == Finish::kCancelled) {
        ++sums.cancelled;
        ASSERT_LE(g.tokens.size(), e.tokens.size());
        e.tokens.resize(g.tokens.size());
        e.logprobs.resize(g.tokens.size());
      }
      ASSERT_EQ(g.tokens, e.tokens) << "request " << q << ", choice " << i;
      ASSERT_EQ(g.logprobs, e.logprobs) << "request " << q << ", choice " << i;
    }
  }
}

TEST(EngineModel, HundredsOfRequestsAnswerAsEachAlone) {
  const size_t count = 100 / test::thinning();
  Sums sums;
  compare("qwen3moe-w4a8-g32-pack", count, XType::kBf16, sums);
  compare("gptoss-dense", count, XType::kF32, sums);      // windows
  compare("deepseekv3-dense", count, XType::kF32, sums);  // latents
  EXPECT_GT(sums.cached, 0u);
  EXPECT_GT(sums.drafted, count);
  EXPECT_GT(sums.right, 0u);
  EXPECT_GT(sums.cancelled, 0u);
}

// One device that stands in for another machine; then attention there and experts here, two batches
// at a time.
TEST(EngineModel, OtherDevicesAnswerAsEachAlone) {
  const size_t count = 40 / test::thinning();
  Sums sums;
  for (const char* placement : {"guarded", "ends=guarded,attention=guarded,experts=cpu"}) {
    compare("qwen3moe-w4a8-g32-pack", count, XType::kBf16, sums, placement);
    compare("qwen35moe-dense", count, XType::kF32, sums, placement);
  }
  EXPECT_GT(sums.drafted, count);
  EXPECT_GT(sums.right, 0u);
  EXPECT_GT(sums.cancelled, 0u);
}

// Double layers whose experts join the next, blocks of keys chosen by each kv head, streams of rows,
// gates and positions that scale: all with little memory, so that sequences are evicted and begin anew.
TEST(EngineModel, YoungestFamiliesAnswerAsEachAlone) {
  const size_t count = 20 / test::thinning();
  Sums sums;
  compare("longcatflash-w4a16-g32", count, XType::kBf16, sums);
  compare("minimaxm3-dense", count, XType::kF32, sums);
  compare("step3p7-fp8-dynamic", count, XType::kBf16, sums);
  compare("beam-dense", count, XType::kF32, sums);
  compare("hyv4-w4a16-g32", count, XType::kBf16, sums);
  compare("deepseekv4-dense", count, XType::kF32, sums);
  compare("deepseekv4-w4a16-g32", count, XType::kBf16, sums);
  compare("bailinghybrid-fp8-dynamic", count, XType::kBf16, sums);
  compare("axk2-fp8-dynamic", count, XType::kBf16, sums);
  compare("mistrallarge4-w4a16-g32", count, XType::kBf16, sums);
  compare("jamba-dense", count, XType::kF32, sums);
  compare("inkling-dense", count, XType::kF32, sums);
  compare("glm5next-dense", count, XType::kF32, sums);
  compare("glm5next-w4a16-g32", count, XType::kBf16, sums);
  compare("qwen4exp-dense", count, XType::kF32, sums);
  compare("qwen4exp-w4a16-g32", count, XType::kBf16, sums);
  EXPECT_GT(sums.drafted, count);
  EXPECT_GT(sums.right, 0u);
  EXPECT_GT(sums.cancelled, 0u);
}

TEST(EngineModel, RecurrentLayersAnswerAsEachAlone) {
  const size_t count = 40 / test::thinning();
  Sums sums;
  compare("qwen35moe-dense", count, XType::kF32, sums);
  compare("nemotronh-w4a16-g32", count, XType::kBf16, sums);
  compare("granitehybrid-dense", count, XType::kF32, sums);
  compare("lfm2moe-fp8-dynamic", count, XType::kBf16, sums);
  compare("kimilinear-dense", count, XType::kF32, sums);
  compare("minimax-w4a16-g32", count, XType::kBf16, sums);
  if (test::thinning() == 1) {
    EXPECT_GT(sums.cached, 0u);
  }
  EXPECT_GT(sums.drafted, count);
  EXPECT_GT(sums.right, 0u);
  EXPECT_GT(sums.cancelled, 0u);
}

// longrope: a sequence that grows beyond the original length (32 here) has the keys of one that began
// so long, as in transformers.
TEST(EngineModel, KeysAreMadeAnewWhereTheRotationChanges) {
  const Checkpoint checkpoint =
      Checkpoint::open((test::test_data_dir() / "golden" / "phimoe-dense").string());
  ThreadPool pool(1);
  ModelOptions options;
  options.pool = &pool, options.type = XType::kF32;
  const auto model = DecoderModel::load(checkpoint, options);
  ASSERT_EQ(model->keys_change_beyond(), 32u);
  EngineOptions o;
  o.context = 200;
  Request r = test::fake_request(24, 5, 20, model->vocab());
  r.sampling.temperature = 0, r.sampling.logprobs = 1;
  Engine engine(*model, o);
  const FakeAnswer whole = answers_of(engine, {r}).at({0, 0});
  ASSERT_EQ(whole.tokens.size(), 20u);
  EXPECT_EQ(engine.snapshot().preemptions, 1u);
  o.drafts = 16, o.every_draft = true;
  Engine drafting(*model, o);
  Request predicted = r;
  predicted.prediction = whole.tokens;
  const FakeAnswer same = answers_of(drafting, {predicted}).at({0, 0});
  EXPECT_EQ(same.tokens, whole.tokens);
  EXPECT_EQ(same.logprobs, whole.logprobs);
  EXPECT_GT(drafting.snapshot().drafts_right[4], 0u);
  for (size_t i = 0; i < whole.tokens.size(); ++i) {
    Request next = r;
    next.prompt.insert(next.prompt.end(), whole.tokens.begin(),
                       whole.tokens.begin() + static_cast<std::ptrdiff_t>(i));
    next.max_new = 1;
    Engine fresh(*model, o);
    const FakeAnswer one = answers_of(fresh, {next}).at({0, 0});
    EXPECT_EQ(one.tokens.at(0), whole.tokens[i]) << i;
    EXPECT_EQ(one.logprobs.at(0), whole.logprobs[i]) << i;
  }
}

}  // namespace
}  // namespace moebius::engine_model_test
