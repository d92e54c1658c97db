// SPDX-License-Identifier: Apache-2.0
// The engine with its prompt cache on disk: answers are those without, whatever was evicted, read
// again, damaged, or left by an engine before; and what is read need not be computed.
#include <gtest/gtest.h>

#include <fstream>

#include "base/error.h"
#include "engine/kv_disk.h"
#include "model/run/decoder.h"
#include "runtime/thread_pool.h"
#include "unit/engine/engine_util.h"
#include "unit/test_util.h"

namespace moebius::engine_disk_test {
namespace {

namespace fs = std::filesystem;
using test::fake_request;
using test::FakeBackend;
using test::FakeEngine;

const std::string kModel(64, 'a'), kOther(64, 'b');

struct Folder {
  KvDisk& disk(uint64_t bytes = uint64_t{1} << 30) {
    disk_.reset();
    KvDiskOptions o;
    o.folder = (temp / "kv").string();
    o.bytes = bytes;
    o.clock = [] { return 0; };
    disk_ = std::make_unique<KvDisk>(o);
    return *disk_;
  }
  std::vector<fs::path> files() const {
    std::vector<fs::path> out;
    for (const auto& entry : fs::directory_iterator(temp / "kv"))
      if (entry.path().extension() == ".kv") out.push_back(entry.path());
    std::sort(out.begin(), out.end());
    return out;
  }
  test::TempDir temp;
  std::unique_ptr<KvDisk> disk_;
};

EngineOptions with_disk(KvDisk& disk, uint64_t kv_bytes = 100000,
                        const std::string& fingerprint = kModel) {
  EngineOptions o;
  o.context = 2000;
  o.parallel = 4;
  o.kv_bytes = kv_bytes;
  o.disk = &disk;
  o.fingerprint = fingerprint;
  return o;
}

// Runs one request; its answer must be the one of the request alone. Tokens that needed no computing.
size_t run_one(FakeEngine& f, const Request& r) {
  const uint64_t id = f.engine->add(r);
  f.run();
  EXPECT_EQ(f.of(id).tokens, f.alone(r).tokens);
  EXPECT_EQ(f.of(id).logprobs, f.alone(r).logprobs);
  EXPECT_TRUE(f.backend.violations.empty()) << f.backend.violations[0];
  return f.of(id).cached;
}

TEST(EngineDisk, ARestartFindsWholeBlocksAndTheUnfinishedOne) {
  for (const auto& kinds : {FakeBackend::full(), FakeBackend::all_kinds()}) {
    const bool states = kinds.size() > 1;
    Folder folder;
    Request first = fake_request(700, 1, 9), again = first, next = first;
    {
      FakeEngine f(kinds, with_disk(folder.disk()));
      EXPECT_EQ(run_one(f, first), 0u);
      const auto answer = f.alone(first).tokens;
      next.prompt.insert(next.prompt.end(), answer.begin(), answer.end() - 1);
      next.prompt.push_back(7);
      f.engine->keep_cache();
    }
    for (uint64_t time = 0; time < 2; ++time) {  // what was read is there for the next one too
      FakeEngine f(kinds, with_disk(folder.disk()));
      // The whole of what ran is there; a state only where it was taken.
      EXPECT_EQ(run_one(f, next), 708u);
      EXPECT_EQ(f.engine->snapshot().disk_tokens, 640u);
      EXPECT_EQ(run_one(f, again), states ? 640u : 699u);
      EXPECT_EQ(run_one(f, fake_request(700, 2 + time, 3)), 0u);
      f.engine->keep_cache();
      EXPECT_TRUE(f.clean());
    }
  }
}

TEST(EngineDisk, OnlyWhatIsEqualIsRead) {
  Folder folder;
  Request r = fake_request(500, 1, 2);
  r.salt = "ann";
  {
    FakeEngine f(FakeBackend::full(), with_disk(folder.disk()));
    run_one(f, r);
    f.engine->keep_cache();
  }
  {  // another model, or the same with other options
    FakeEngine f(FakeBackend::full(), with_disk(folder.disk(), 100000, kOther));
    EXPECT_EQ(run_one(f, r), 0u);
  }
  FakeEngine f(FakeBackend::full(), with_disk(folder.disk()));
  Request bob = r, one_token = r, later = r;
  bob.salt = "bob";
  EXPECT_EQ(run_one(f, bob), 0u);
  one_token.prompt[0] = (one_token.prompt[0] + 1) % 60;
  EXPECT_EQ(run_one(f, one_token), 0u);
  later.prompt[300] = (later.prompt[300] + 1) % 60;
  EXPECT_EQ(run_one(f, later), 256u);
  EXPECT_EQ(run_one(f, r), 499u);
}

TEST(EngineDisk, WhatIsEvictedComesBack) {
  for (const auto& kinds : {FakeBackend::full(), FakeBackend::all_kinds()}) {
    Folder folder;
    KvDisk& disk = folder.disk();
    FakeEngine f(kinds, with_disk(disk, 8 * kv_bytes_of(kinds, 1)));
    for (int round = 0; round < 3; ++round)
      for (uint64_t seed = 1; seed <= 4; ++seed) {
        const size_t cached = run_one(f, fake_request(600, seed, 3));
        disk.flush();  // the writer has its time between two requests
        if (round > 0) {
          EXPECT_GE(cached, 512u);
        }
      }
    EXPECT_GT(f.engine->snapshot().evictions, 20u);
    EXPECT_GT(f.engine->snapshot().disk.read_files, 20u);
    EXPECT_EQ(f.engine->snapshot().disk.damaged, 0u);
    EXPECT_TRUE(f.clean());
  }
}

// Bytes all over every file in turn: what it was for is computed, and it is written again.
TEST(EngineDisk, DamagedFilesAreComputedAndReplaced) {
  Folder folder;
  const Request r = fake_request(300, 1, 2);
  {
    FakeEngine f(FakeBackend::full(), with_disk(folder.disk()));
    run_one(f, r);
    f.engine->keep_cache();
  }
  const std::vector<fs::path> files = folder.files();
  ASSERT_EQ(files.size(), 3u);
  std::vector<std::string> good;
  for (const fs::path& p : files) good.push_back(test::read_file(p));
  const size_t step = 31 * test::thinning();
  for (size_t i = 0; i < files.size(); ++i)
    for (size_t at = 0; at < good[i].size(); at += step) {
      std::string bad = good[i];
      bad[at] = static_cast<char>(bad[at] ^ 4);
      test::write_file(files[i], bad);
      FakeEngine f(FakeBackend::full(), with_disk(folder.disk()));
      EXPECT_LT(run_one(f, r), 299u);
      EXPECT_EQ(f.engine->snapshot().disk.damaged, 1u);
      f.engine->keep_cache();
      ASSERT_EQ(test::read_file(files[i]), good[i]) << at;
    }
  // Files that changed places, were cut or are empty.
  for (const std::string& content : {good[1], good[0].substr(0, 400), std::string()}) {
    test::write_file(files[0], content);
    FakeEngine f(FakeBackend::full(), with_disk(folder.disk()));
    EXPECT_LT(run_one(f, r), 299u);
    f.engine->keep_cache();
    ASSERT_EQ(test::read_file(files[0]), good[0]);
  }
}

TEST(EngineDisk, ReadingGoesOnBetweenStepsAndEndsWhereComputingIsFaster) {
  Folder folder;
  const Request r = fake_request(1600, 1, 2), other = fake_request(10, 2, 60);
  {
    FakeEngine f(FakeBackend::full(), with_disk(folder.disk()));
    run_one(f, r);
    f.engine->keep_cache();
  }
  {  // Blocks that take as long as three steps: one goes before each step of the other sequence.
    FakeEngine f(FakeBackend::full(), with_disk(folder.disk()));
    f.engine->calibrate();
    f.backend.read_nanoseconds = 330000;
    const uint64_t slow = f.engine->add(other);
    for (int i = 0; i < 3; ++i) f.step();
    const uint64_t id = f.engine->add(r);
    size_t most = 0;
    for (size_t before = 0; !f.engine->idle(); before = f.backend.blocks_read) {
      ASSERT_EQ(f.step().failure, "");
      most = std::max(most, f.backend.blocks_read - before);
    }
    EXPECT_EQ(most, 1u);
    EXPECT_EQ(f.of(id).cached, 1599u);
    EXPECT_EQ(f.of(id).tokens, f.alone(r).tokens);
    EXPECT_EQ(f.of(slow).tokens, f.alone(other).tokens);
  }
  {  // A disk that is slower than the model is not read.
    KvDiskOptions o;
    o.folder = (folder.temp / "kv").string();
    o.bytes = 1 << 30;
    uint64_t time = 0;
    o.clock = [&] { return time += 1'000'000'000; };
    folder.disk_.reset();
    KvDisk disk(o);
    FakeEngine f(FakeBackend::full(), with_disk(disk));
    f.engine->calibrate();
    EXPECT_LT(run_one(f, r), 1000u);                         // the first block says how slow it is
    EXPECT_EQ(run_one(f, fake_request(1600, 1, 3)), 1599u);  // from memory
    FakeEngine g(FakeBackend::full(), with_disk(disk));
    g.engine->calibrate();
    EXPECT_EQ(run_one(g, r), 0u);
  }
}

// Mixed requests, with little memory, over several engines one after the other on one folder.
TEST(EngineDisk, MixedRequestsAnswerAsAloneOverRestarts) {
  SplitMix64 random(5);
  std::vector<std::vector<int32_t>> streams;
  for (uint64_t i = 0; i < 4; ++i) streams.push_back(fake_request(700, 100 + i, 0).prompt);
  uint64_t read = 0, cached = 0;
  for (const auto& kinds : {FakeBackend::full(), FakeBackend::all_kinds()}) {
    Folder folder;
    for (int restart = 0; restart < 4; ++restart) {
      EngineOptions o = with_disk(folder.disk(restart == 2 ? 100000 : 1 << 30),
                                  (restart == 1 ? 30 : 14) * kv_bytes_of(kinds, 1));
      o.drafts = 3, o.every_draft = true;
      FakeEngine f(kinds, o);
      std::vector<std::pair<uint64_t, Request>> sent;
      for (int i = 0; i < 60; ++i) {
        Request r = fake_request(1 + random.below(30), random.next(), 1 + random.below(30));
        const auto& stream = streams[random.below(4)];
        r.prompt.insert(r.prompt.begin(), stream.begin(),
                        stream.begin() + static_cast<std::ptrdiff_t>(random.below(700)));
        if (random.below(6) == 0) r.n = 2;
        if (random.below(5) == 0) r.salt = "s";
        sent.emplace_back(f.engine->add(r), r);
        if (random.below(3) == 0) f.run();
      }
      f.run();
      for (const auto& [id, r] : sent)
        for (size_t n = 0; n < r.n; ++n) {
          ASSERT_EQ(f.of(id, n).tokens, f.alone(r, n).tokens);
          ASSERT_EQ(f.of(id, n).logprobs, f.alone(r, n).logprobs);
        }
      f.engine->keep_cache();
      read += f.engine->snapshot().disk.read_files;
      cached += f.engine->snapshot().disk_tokens;
      EXPECT_EQ(f.engine->snapshot().disk.damaged, 0u);
      EXPECT_TRUE(f.clean()) << (f.backend.violations.empty() ? "" : f.backend.violations[0]);
    }
  }
  EXPECT_GT(read, 100u);
  EXPECT_GT(cached, 10000u);
}

std::vector<std::pair<std::vector<int32_t>, std::vector<float>>> answers_of_model(
    Engine& engine, const std::vector<Request>& requests, uint64_t& cached) {
  std::vector<std::pair<std::vector<int32_t>, std::vector<float>>> out(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    engine.add(requests[i]);
    while (!engine.idle()) {
      const StepReport report = engine.step();
      EXPECT_EQ(report.failure, "");
      if (!report.failure.empty()) return out;
      for (const StepResult& r : report.results) {
        if (r.choice) out[i].first.push_back(r.choice->token);
        if (r.choice) out[i].second.push_back(r.choice->logprob);
        if (r.finish != Finish::kNone) cached += r.cached_tokens;
      }
    }
  }
  return out;
}

// Layers of every sort: the bytes of a block, written, forgotten with the model, and read by another.
void compare_restart(const std::string& folder_name, XType type, const char* placement = "cpu") {
  SCOPED_TRACE(folder_name);
  const fs::path path = folder_name.empty() ? test::bundled_model_dir()
                                            : test::test_data_dir() / "golden" / folder_name;
  const Checkpoint checkpoint = Checkpoint::open(path.string());
  ThreadPool pool(2);
  ModelOptions options;
  options.context = 400, options.type = type, options.pool = &pool;
  options.placement = parse_placement(placement);
  std::vector<Request> requests;
  const auto load = [&] { return DecoderModel::load(checkpoint, options); };
  auto model = load();
  bool states = false;
  for (const KvKind& kind : model->kv_kinds()) states = states || !kind.cuttable;
  const Request stream = fake_request(300, 7, 6, model->vocab());
  for (const size_t length : {size_t{300}, size_t{260}, size_t{170}}) {
    Request r = stream;
    r.prompt.resize(length);
    r.sampling.logprobs = 1;
    requests.push_back(r);
  }
  EngineOptions o;
  o.context = 400;
  // Blocks are not written inside a region of the pool for which an operation of a guarded device, whose
  // pages it holds, may wait.
  if (std::string_view(placement) == "cpu") o.pool = &pool;
  uint64_t cached = 0;
  std::vector<std::pair<std::vector<int32_t>, std::vector<float>>> expected;
  for (const Request& r : requests) {
    Engine plain(*model, o);
    expected.push_back(answers_of_model(plain, {r}, cached)[0]);
  }
  EXPECT_EQ(cached, 0u);
  Folder folder;
  o.fingerprint = kModel;
  for (int restart = 0; restart < 3; ++restart) {
    o.disk = &folder.disk();
    Engine engine(*model, o);
    cached = 0;
    const auto got = answers_of_model(engine, {requests[static_cast<size_t>(restart)]}, cached);
    ASSERT_EQ(got[0], expected[static_cast<size_t>(restart)]);
    // A state within a prompt is not worth its bytes.
    EXPECT_GE(cached, restart == 0 ? 0u : restart == 1 ? 256u : states ? 0u : 128u);
    EXPECT_EQ(engine.snapshot().disk.damaged, 0u);
    engine.keep_cache();
    model = load();
  }
}

TEST(EngineDisk, LayersOfEverySortComeBack) {
  compare_restart("", XType::kBf16);
  compare_restart("qwen3moe-w4a8-g32-pack", XType::kBf16);
  compare_restart("gptoss-dense", XType::kF32);       // windows
  compare_restart("deepseekv3-dense", XType::kF32);   // latents
  compare_restart("deepseekv32-dense", XType::kF32);  // indexers
  compare_restart("deepseekv4-dense", XType::kF32);   // compressed keys
  compare_restart("qwen35moe-dense", XType::kF32);    // states
  compare_restart("nemotronh-w4a16-g32", XType::kBf16);
  compare_restart("kimilinear-dense", XType::kF32);
  compare_restart("inkling-dense", XType::kF32);   // convolutions beside keys
  compare_restart("qwen4exp-dense", XType::kF32);  // averaged keys, tokens before n-grams
  compare_restart("qwen35moe-dense", XType::kF32, "guarded");
  compare_restart("qwen3moe-w4a8-g32-pack", XType::kBf16,
                  "ends=guarded,attention=guarded,experts=cpu");
}

// Where blocks cannot be had, that is said at the start.
TEST(EngineDisk, ABackendThatCannotIsRefused) {
  struct Closed : FakeBackend {
    using FakeBackend::FakeBackend;
    size_t stored_bytes(size_t) const override { return 0; }
  };
  Folder folder;
  Closed backend(FakeBackend::full());
  EXPECT_THROW(Engine(backend, with_disk(folder.disk())), Error);
}

}  // namespace
}  // namespace moebius::engine_disk_test
