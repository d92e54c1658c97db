// SPDX-License-Identifier: Apache-2.0
// Models on devices that stand in for other machines: rows and blocks in pages that nobody else can
// touch, operations run by a thread of their own. Every placement gives the bytes of the CPU; a
// device that fails, has no memory or is lost leaves sequences as they were.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <random>

#include "device/placement.h"
#include "model/ranks/ranked_model.h"
#include "model/run/decoder.h"
#include "unit/device/guarded_util.h"
#include "unit/test_util.h"

namespace moebius::guarded_device_test {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPlacements[] = {
    "guarded",
    "ends=guarded,attention=guarded,experts=cpu",
    "ends=cpu,attention=cpu,experts=guarded",
    "ends=cpu,attention=guarded:0-0,experts=guarded:0-0,attention=guarded2:1-1,experts=guarded2:1-"
    "1,"
    "attention=guarded:3-,experts=guarded2:3-",
};

std::vector<int32_t> some_tokens(size_t n, size_t vocab) {
  std::mt19937 rng(7);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(rng() % vocab);
  return out;
}

ModelOptions options_for(ThreadPool& pool, const char* placement) {
  ModelOptions options;
  options.pool = &pool, options.type = XType::kF32;
  options.placement = parse_placement(placement);
  return options;
}

// A prompt in two pieces and a token behind it.
std::vector<float> logits_of(DecoderModel& model, const std::vector<int32_t>& tokens) {
  SequenceState state = model.new_sequence();
  std::vector<float> all, some;
  const size_t n = tokens.size();
  for (const auto& [begin, end] : {std::pair{size_t{0}, n / 2}, {n / 2, n - 1}, {n - 1, n}}) {
    const StepItem item{&state, std::span(tokens).subspan(begin, end - begin), true};
    model.forward({&item, 1}, some);
    all.insert(all.end(), some.begin(), some.end());
  }
  return all;
}

bool same(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

bool contains(const std::string& text, std::string_view part) {
  return text.find(part) != std::string::npos;
}

template <class F>
std::string error_of(F f) {
  try {
    f();
  } catch (const std::exception& e) {
    return e.what();
  }
  return "nothing was thrown";
}

Checkpoint golden(const std::string& name) {
  return Checkpoint::open((test::test_data_dir() / "golden" / name).string());
}

TEST(Guarded, EveryFolderInEveryPlacementGivesTheBytesOfTheCpu) {
  ThreadPool pool(2);
  size_t folders = 0, seen = 0;
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    const std::string name = entry.path().filename().string();
    if (!fs::exists(entry.path() / "config.json")) continue;
    if (seen++ % test::thinning() != 0) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = Checkpoint::open(entry.path().string());
    std::unique_ptr<DecoderModel> cpu;
    try {
      cpu = DecoderModel::load(checkpoint, options_for(pool, "cpu"));
    } catch (const Error&) {
      continue;  // a folder of blocks
    }
    const std::vector<int32_t> tokens = some_tokens(12, cpu->vocab());
    const std::vector<float> want = logits_of(*cpu, tokens);
    for (const char* placement : kPlacements) {
      const auto model = DecoderModel::load(checkpoint, options_for(pool, placement));
      EXPECT_TRUE(same(want, logits_of(*model, tokens))) << placement;
    }
    ++folders;
  }
  EXPECT_GT(folders, 120u / test::thinning());
}

// Blocks by number, copies, cuts, states: as an engine has them.
TEST(Guarded, BlocksOfAnyNumbersGiveTheBytesOfTheCpu) {
  ThreadPool pool(2);
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "deepseekv32-dense", "deepseekv4-dense",
                           "qwen3next-w4a8-g32", "qwen4exp-dense"}) {
    const Checkpoint checkpoint = golden(name);
    const auto run = [&](const char* placement) {
      const auto model = DecoderModel::load(checkpoint, options_for(pool, placement));
      const std::vector<int32_t> tokens = some_tokens(200, model->vocab());
      const size_t kinds = model->kv_kinds().size();
      const BlockTables a(kinds, {7, 2}), b(kinds, {7, 5});
      std::vector<float> all;
      const auto through = [&](const BlockTables& tables, size_t position, size_t n) {
        const BatchItem item{&tables, position, std::span(tokens).subspan(position, n),
                             LogitsOf::kAll};
        StepOutput out;
        model->collect(model->submit({&item, 1}), out);
        all.insert(all.end(), out.logits.begin(), out.logits.end());
      };
      through(a, 0, 150), through(a, 150, 50);
      for (size_t k = 0; k < kinds; ++k) model->copy_block(k, 2, 5, 72);
      through(b, 128, 60);
      for (size_t k = 0; k < kinds; ++k) model->cut_block(k, 5, 0);
      through(b, 128, 72);
      return all;
    };
    const std::vector<float> want = run("cpu");
    for (const char* placement : kPlacements) EXPECT_TRUE(same(want, run(placement))) << name;
  }
}

TEST(Guarded, RanksHaveADeviceEach) {
  ThreadPool pool(1);
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  const auto cpu = DecoderModel::load(checkpoint, options_for(pool, "cpu"));
  const std::vector<int32_t> tokens = some_tokens(20, cpu->vocab());
  const std::vector<float> want = logits_of(*cpu, tokens);
  for (const RankSplit& split : {RankSplit{2, 1, 1}, {1, 2, 1}, {1, 1, 2}, {2, 2, 1}})
    for (const char* placement : {kPlacements[0], kPlacements[1], kPlacements[2]}) {
      ThreadRankedModel ranked(checkpoint, options_for(pool, placement), split, nullptr);
      EXPECT_TRUE(same(want, logits_of(ranked.model(), tokens))) << describe(split) << placement;
    }
}

// A fault at every operation and at every allocation of a step, in turn.
TEST(Guarded, AFailedStepLeavesSequencesAsTheyWere) {
  ThreadPool pool(2);
  for (const char* placement : {kPlacements[0], kPlacements[1], kPlacements[2]})
    for (const char* name : {"qwen3moe-w4a8-g32-pack", "deepseekv3-w4a8-g32", "qwen3next-dense"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, placement));
      const Checkpoint checkpoint = golden(name);
      const auto cpu = DecoderModel::load(checkpoint, options_for(pool, "cpu"));
      const std::vector<int32_t> tokens = some_tokens(60, cpu->vocab());
      SequenceState reference = cpu->new_sequence();
      std::vector<float> want, logits;
      for (const auto& [begin, end] : {std::pair{0u, 40u}, {40u, 60u}}) {
        const StepItem item{&reference, std::span(tokens).subspan(begin, end - begin), true};
        cpu->forward({&item, 1}, want);
      }
      for (std::atomic<long>* fault : {&guarded_faults().operation, &guarded_faults().allocation}) {
        const auto model = DecoderModel::load(checkpoint, options_for(pool, placement));
        size_t failed = 0;
        for (long n = 0;; n += 3) {
          SequenceState state = model->new_sequence();
          const StepItem before{&state, std::span(tokens).first(40), false};
          model->forward({&before, 1}, logits);
          const std::vector<int32_t> other = some_tokens(130, cpu->vocab());
          const StepItem bad{&state, other, true};
          fault->store(n);
          bool threw = false;
          try {
            model->forward({&bad, 1}, logits);
          } catch (const std::exception&) {
            threw = true;
          }
          fault->store(-1);
          if (!threw) break;
          ++failed;
          ASSERT_EQ(state.length(), 40u);
          const StepItem after{&state, std::span(tokens).subspan(40), true};
          model->forward({&after, 1}, logits);
          ASSERT_TRUE(same(want, logits)) << n;
        }
        EXPECT_GT(failed, 0u);
      }
    }
}

TEST(Guarded, ALostDeviceIsSaidAndStaysLost) {
  ThreadPool pool(2);
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  const auto model = DecoderModel::load(checkpoint, options_for(pool, kPlacements[2]));
  EXPECT_FALSE(model->lost());
  guarded_faults().loss = 3;
  const std::vector<int32_t> tokens = some_tokens(9, model->vocab());
  for (int i = 0; i < 2; ++i)
    EXPECT_TRUE(
        contains(error_of([&] { logits_of(*model, tokens); }), "the device guarded is lost"));
  guarded_faults().loss = -1;
  EXPECT_TRUE(model->lost());
}

// The pages are closed while no operation runs.
TEST(Guarded, NobodyElseCanTouchItsRows) {
  if (!test::plain_build()) GTEST_SKIP() << "sanitizers handle the signal themselves";
  ThreadPool pool(1);
  CpuDevice device(&pool, host_cpu(), {}, make_guarded("guarded"));
  Step step;
  step.rows = 4;
  const RowSet rows = device.rows(step, 0, 8, XType::kF32);
  const RowSet none;
  device.on_host(step, none, rows,
                 [](HostRows, HostRows y) { std::fill(y.data.begin(), y.data.end(), 3.0f); });
  float sum = 0;
  device.on_host(step, rows, none, [&](HostRows x, HostRows) {
    for (const float v : x.data) sum += v;
  });
  EXPECT_EQ(sum, 96.0f);
  device.wait(step);
  GTEST_FLAG_SET(death_test_style, "fast");
  EXPECT_EXIT(
      {
        std::signal(SIGSEGV, SIG_DFL);
        const volatile float* touched = device.at(step, rows);
        std::_Exit(*touched == 3.0f ? 0 : 1);
      },
      testing::KilledBySignal(SIGSEGV), ".*");
}

TEST(Placement, IsReadAndRefusedInWords) {
  EXPECT_EQ(parse_placement("cpu").describe(), "cpu");
  const DevicePlacement p = parse_placement("attention=guarded,experts=cpu:1-2");
  EXPECT_EQ(p.of(0).attention, "guarded");
  EXPECT_EQ(parse_placement("experts=guarded:1-2").of(0).experts, "cpu");
  EXPECT_EQ(parse_placement("experts=guarded:1-2").of(2).experts, "guarded");
  EXPECT_EQ(parse_placement("experts=guarded:1-2").of(3).experts, "cpu");
  EXPECT_EQ(parse_placement("experts=guarded:4-").of(9).experts, "guarded");
  EXPECT_TRUE(parse_placement("attention=cpu,experts=cpu").one_device());
  EXPECT_FALSE(p.one_device());
  const auto refusal = [](const char* text) { return error_of([&] { parse_placement(text); }); };
  EXPECT_EQ(parse_placement("cuda:1,experts=cpu").gpu(), "cuda:1");
  EXPECT_EQ(parse_placement("cpu").gpu(), "");
  EXPECT_TRUE(contains(refusal("gpu"), "'gpu' is not a device of this build; there are: cpu"));
  EXPECT_TRUE(contains(refusal("router=cpu"), "'router' is no part of a model"));
  EXPECT_TRUE(contains(refusal("experts=cpu:x"), "'x' is no number of a layer"));
  EXPECT_TRUE(contains(refusal("experts=cpu:5-3"), "its last layer lies before its first"));
  EXPECT_TRUE(contains(refusal(""), "'' is not a device"));
}

}  // namespace
}  // namespace moebius::guarded_device_test
