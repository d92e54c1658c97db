// SPDX-License-Identifier: Apache-2.0
// Layers for multi-token prediction: their logits are those of transformers' layers (../golden-mtp), what
// they keep depends on a sequence's tokens alone, and answers are those without them.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <deque>
#include <functional>
#include <map>

#include "checkpoint/families.h"
#include "checkpoint/safetensors.h"
#include "engine/engine.h"
#include "model/arch/arch.h"
#include "model/run/step_runner.h"
#include "moebius/error.h"
#include "unit/engine/engine_util.h"
#include "unit/test_util.h"

namespace moebius::test::predictor_test {
namespace {

constexpr const char* kPredictors[] = {"deepseekv3", "deepseekv32", "glm4moe", "qwen3next",
                                       "qwen35moe"};

std::filesystem::path predictor_dir(std::string_view name) {
  return test_data_dir() / "golden-mtp" / name;
}

struct PredictorModel {
  explicit PredictorModel(const std::filesystem::path& folder, XType type = XType::kF32,
                          bool predictor = true, size_t threads = 2)
      : checkpoint(Checkpoint::open(folder.string())), pool(threads) {
    ModelOptions options;
    options.pool = &pool, options.type = type, options.predictor = predictor;
    options.context = 400;
    runner = std::make_unique<StepRunner>(
        checkpoint, options, ModelPart(checkpoint, decoder_spec(checkpoint.config()), nullptr),
        nullptr);
    tables.assign(runner->kv_kinds().size(), {2, 0, 1});
    for (size_t k = 0; k < tables.size(); ++k) runner->commit_blocks(k, 3);
  }
  StepOutput step(size_t position, std::span<const int32_t> tokens, size_t drafts = 0) {
    const BatchItem item{&tables, position, tokens, LogitsOf::kAll, 0, drafts};
    StepOutput out;
    runner->collect(runner->submit({&item, 1}), out);
    return out;
  }
  // Logits of what is drafted behind `token`.
  std::vector<float> draft(size_t position, int32_t token, size_t drafts,
                           std::vector<int32_t>* tokens = nullptr) {
    Predictor::Sequence s{&tables, &runner->engine_pool(), position, 0, drafts, {token}};
    std::vector<float> logits;
    runner->predictor()->draft({&s, 1}, 0, &logits);
    for (size_t k = 0; k < tables.size(); ++k)
      if (runner->kv_kinds()[k].cuttable)
        runner->cut_block(k, tables[k][position / kBlockTokens], position % kBlockTokens);
    if (tokens != nullptr) *tokens = s.tokens;
    return logits;
  }
  Checkpoint checkpoint;
  ThreadPool pool;
  std::unique_ptr<StepRunner> runner;
  BlockTables tables;
};

struct ExpectedDrafts {
  explicit ExpectedDrafts(const char* name)
      : store(TensorStore::open_file((predictor_dir(name) / "expected.safetensors").string())) {
    for (const int64_t t : integers("tokens")) tokens.push_back(static_cast<int32_t>(t));
  }
  std::vector<int64_t> integers(const char* name) const {
    const TensorInfo& t = store.require(name);
    std::vector<int64_t> out(t.bytes / sizeof(int64_t));
    store.read(t, 0, {reinterpret_cast<uint8_t*>(out.data()), t.bytes});
    return out;
  }
  std::vector<float> floats(const char* name) const {
    return read_floats(store, store.require(name));
  }
  TensorStore store;
  std::vector<int32_t> tokens;
};

void expect_near(std::span<const float> got, std::span<const float> want, const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  double off = 0, size = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    off = std::max(off, std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i])));
    size = std::max(size, std::abs(static_cast<double>(want[i])));
  }
  EXPECT_LE(off, 2e-5 * std::max(1.0, size)) << what;  // two heads in a row, each within 1e-5
}

TEST(Predictor, GivesTheLogitsOfTransformers) {
  for (const char* name : kPredictors) {
    SCOPED_TRACE(name);
    PredictorModel m(predictor_dir(name));
    const ExpectedDrafts e(name);
    const std::vector<float> logits = e.floats("logits"), chained = e.floats("chain_logits");
    const std::vector<int64_t> chains = e.integers("chains");
    std::map<size_t, size_t> chain_at;  // by position; SIZE_MAX: one draft alone
    for (size_t t = 1; t < e.tokens.size(); t += t < 12 ? 1 : 7) chain_at[t] = SIZE_MAX;
    for (size_t c = 0; c < chains.size() / 4; ++c) chain_at[static_cast<size_t>(chains[4 * c])] = c;
    const size_t vocab = m.runner->vocab();
    size_t run = 0;
    for (const auto& [t, chain] : chain_at) {
      m.step(run, std::span(e.tokens).subspan(run, t - run));
      run = t;
      std::vector<int32_t> drafted;
      const std::vector<float> got = m.draft(t, e.tokens[t], chain == SIZE_MAX ? 1 : 3, &drafted);
      expect_near(std::span(got).first(vocab), std::span(logits).subspan(t * vocab, vocab),
                  "token " + std::to_string(t));
      if (chain == SIZE_MAX) continue;
      expect_near(got, std::span(chained).subspan(3 * chain * vocab, 3 * vocab), "a chain");
      for (size_t i = 1; i < 4; ++i) EXPECT_EQ(drafted[i], chains[4 * chain + i]);
    }
  }
}

bool equal_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// However a sequence was cut into steps, and whatever was drafted and cut off in between.
TEST(Predictor, KeepsWhatDependsOnTokensAlone) {
  for (const char* name : {"deepseekv3", "deepseekv32", "glm4moe"}) {
    SCOPED_TRACE(name);
    PredictorModel m(predictor_dir(name), XType::kBf16), other(predictor_dir(name), XType::kBf16);
    const ExpectedDrafts e(name);
    const size_t T = 290;
    m.step(0, std::span(e.tokens).first(T));
    const std::vector<float> want = m.draft(T, e.tokens[T], 2);
    const std::vector<int32_t> wrong = {3, 4, 5};
    for (size_t t = 0; t < T;) {
      const size_t piece = t < 120 ? 29 : t < 140 ? 1 : 31;
      const auto some = std::span(e.tokens).subspan(t, std::min(piece, T - t));
      other.step(t, some);
      t += some.size();
      if (t == T) break;
      // Drafts of its own behind one token, then keys that are cut.
      const StepOutput out = other.step(t, std::span(e.tokens).subspan(t, 1), 3);
      EXPECT_EQ(out.drafts.size(), 3u);
      EXPECT_EQ(out.logits.size(), 4 * other.runner->vocab());
      for (size_t k = 0; k < other.tables.size(); ++k)
        for (size_t b = t / kBlockTokens; b <= (t + 3) / kBlockTokens; ++b)
          other.runner->cut_block(k, other.tables[k][b],
                                  b == t / kBlockTokens ? t % kBlockTokens : 0);
    }
    EXPECT_TRUE(equal_bytes(other.draft(T, e.tokens[T], 2), want));
  }
}

std::vector<Request> requests_for(size_t count, size_t vocab) {
  SplitMix64 random(5);
  const auto stream = fake_request(300, 99, 0, vocab).prompt;
  std::vector<Request> out;
  for (size_t i = 0; i < count; ++i) {
    Request r = fake_request(1 + random.below(30), 70 + i, 1 + random.below(30), vocab);
    if (random.below(2) == 0)
      r.prompt.insert(r.prompt.begin(), stream.begin(),
                      stream.begin() + static_cast<std::ptrdiff_t>(random.below(stream.size())));
    if (random.below(6) == 0) r.n = 2;
    r.sampling.logprobs = 1;
    if (random.below(3) != 0) r.sampling.temperature = 0;
    out.push_back(std::move(r));
  }
  return out;
}

// Shared prefixes, forks, too little memory; each request is compared with itself alone, on a model
// without the layer. How many drafts were right and how many tokens the cache had follow measured times.
EngineSnapshot expect_same_answers(const std::filesystem::path& folder, size_t count) {
  SCOPED_TRACE(folder.filename().string());
  PredictorModel m(folder, XType::kBf16), plain(folder, XType::kBf16, false, 1);
  std::vector<Request> requests = requests_for(count, m.runner->vocab());
  std::map<AnswerKey, FakeAnswer> expected;
  for (size_t i = 0; i < requests.size(); ++i) {
    EngineOptions o;
    o.context = 400, o.parallel = 2, o.prompt_rows = 7 + i % 50;
    Engine alone(*plain.runner, o);
    for (auto& [key, answer] : answers_of(alone, {requests[i]}))
      expected[{i, key.second}] = std::move(answer);
  }
  EngineOptions o;
  o.context = 400, o.parallel = 6, o.pool = &m.pool;
  o.drafts = 3, o.every_draft = true, o.backend_drafts = true;
  o.kv_bytes = 9 * kv_bytes_of(m.runner->kv_kinds(), 1);
  Engine engine(*m.runner, o);
  engine.calibrate();
  const auto got = answers_of(engine, requests);
  EXPECT_EQ(got.size(), expected.size());
  for (const auto& [key, want] : expected) {
    const FakeAnswer& a = got.at(key);
    EXPECT_EQ(a.tokens, want.tokens) << key.first;
    EXPECT_EQ(a.logprobs, want.logprobs) << key.first;
    EXPECT_EQ(a.finish, want.finish) << key.first;
  }
  const EngineSnapshot s = engine.snapshot();
  std::printf("%s: %llu drafted, %llu of the first right\n", folder.filename().c_str(),
              static_cast<unsigned long long>(s.drafted_tokens),
              static_cast<unsigned long long>(s.drafts_right[0]));
  EXPECT_GT(s.drafted_tokens, count);
  EXPECT_EQ(s.kv.used, 0u);
  return s;
}

TEST(Predictor, ChangesNoAnswer) {
  uint64_t cached = 0, right = 0;
  for (const char* name : kPredictors) {
    const EngineSnapshot s = expect_same_answers(predictor_dir(name), 24 / thinning());
    cached += s.cached_tokens, right += s.drafts_right[0];
  }
  if (thinning() == 1) {  // of so few nobody need find what another left
    EXPECT_GT(cached, 0u);
  }
  EXPECT_GT(right, 0u);
}

// Its weights may be stored otherwise than the model's: here the model's are quantized.
TEST(Predictor, IsQuantizedByItsOwnNames) {
  const std::filesystem::path base = test_data_dir() / "golden" / "qwen3next-w4a16-g32";
  const TensorStore model = TensorStore::open_file((base / "model.safetensors").string()),
                    head = TensorStore::open_file(
                        (predictor_dir("qwen3next") / "model.safetensors").string());
  std::deque<std::vector<uint8_t>> bytes;
  std::vector<TensorData> tensors;
  const auto add = [&](const TensorStore& store, bool predictor) {
    for (const TensorInfo& t : store.tensors()) {
      if (predictor != t.name.starts_with("mtp.")) continue;
      store.read(t, 0, bytes.emplace_back(t.bytes));
      tensors.push_back({t.name, t.dtype, t.shape, bytes.back()});
    }
  };
  add(model, false), add(head, true);
  const TempDir folder;
  write_safetensors((folder / "model.safetensors").string(), tensors);
  std::string config = read_file(base / "config.json");
  const std::string_view ignore = "\"ignore\": [";
  config.insert(config.find(ignore) + ignore.size(), "\"re:mtp.*\", ");
  write_file(folder / "config.json", config);
  expect_same_answers(folder.path(), 8);
}

std::string error_of(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(Predictor, IsRefusedInWords) {
  const std::filesystem::path none = test_data_dir() / "golden" / "qwen3moe-dense";
  EXPECT_NE(
      error_of([&] { PredictorModel m(none); }).find("has no layer for multi-token prediction"),
      std::string::npos);
  PredictorModel without(predictor_dir("glm4moe"), XType::kBf16, false);
  EngineOptions o;
  o.context = 300, o.drafts = 2, o.backend_drafts = true;
  EXPECT_NE(error_of([&] { Engine e(*without.runner, o); }).find("multi-token prediction"),
            std::string::npos);
  EXPECT_FALSE(without.runner->drafts());
  const std::vector<int32_t> one = {3};
  EXPECT_NE(error_of([&] { without.step(0, one, 1); }), "");
  // Nothing of it is loaded, and no keys of it are kept.
  PredictorModel with(predictor_dir("glm4moe"), XType::kBf16);
  EXPECT_LT(without.runner->packed_bytes(), with.runner->packed_bytes());
  EXPECT_LT(without.runner->kv_kinds().size(), with.runner->kv_kinds().size());
  const Checkpoint streams =
      Checkpoint::open((test_data_dir() / "golden" / "deepseekv4-dense").string());
  EXPECT_NE(error_of([&] { predictor_spec(streams.config()); }).find("streams of rows"),
            std::string::npos);
}

// Every family of the registry runs whole, or says in a sentence what it needs.
TEST(Architectures, WhatIsNotWholeSaysWhatIsMissing) {
  size_t missing = 0;
  for (const Family& family : families()) {
    bool whole = false;
    for (const Architecture& a : architectures()) whole = whole || a.family == family.key;
    if (whole) continue;
    ++missing;
    ModelConfig config;
    config.family = family.key;
    EXPECT_NE(error_of([&] { decoder_spec(config); }).find(": it needs "), std::string::npos)
        << family.key;
  }
  EXPECT_EQ(missing, 9u);
}

}  // namespace
}  // namespace moebius::test::predictor_test
