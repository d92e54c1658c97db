// SPDX-License-Identifier: Apache-2.0
// Copies of busy experts: what they do to skewed loads, files of loads, and layers that change while
// a model runs on ranks. Ranks are threads here.
#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "model/ranks/ranked_model.h"
#include "model/run/expert_balance.h"
#include "unit/test_util.h"

namespace moebius::expert_balance_test {
namespace {

// Busiest over mean of about 1.5 where experts lie in order: the first ones are busy.
std::vector<uint64_t> skewed(size_t experts) {
  std::vector<uint64_t> rows;
  for (size_t e = 0; e < experts; ++e)
    rows.push_back(100 + (experts - e) * 2000 / experts * (e < experts / 4 ? 2 : 1));
  return rows;
}

TEST(ExpertBalance, AQuarterMoreSlotsEvenOutSkewedLoads) {
  for (const size_t ranks : {2u, 4u, 8u})
    for (const size_t experts : {32u, 64u, 128u}) {
      BalanceSettings s;
      s.ranks = ranks;
      ExpertBalance none(s);
      const ExpertLoads loads{{3, skewed(experts)}};
      none.add_layer(3, experts, loads);
      EXPECT_GT(none.imbalance(3), ranks == 2 ? 1.3 : 1.5);
      EXPECT_TRUE(none.expert_of(3).empty());
      s.spare = experts / 4;
      ExpertBalance some(s);
      some.add_layer(3, experts, loads);
      EXPECT_LE(some.imbalance(3), 1.1) << ranks << " ranks, " << experts << " experts";
      EXPECT_EQ(some.expert_of(3).size(), experts + s.spare);
    }
}

// --expert-loads is a name that a user gives.
TEST(ExpertBalance, AFileOfLoadsMayBeALinkAndADeviceHasNone) {
  namespace fs = std::filesystem;
  const test::TempDir dir;
  fs::create_symlink("real", dir / "link");
  const std::string link = (dir / "link").string();
  EXPECT_TRUE(read_loads(link).empty());
  save_loads(link, {{3, {1, 2}}});
  EXPECT_TRUE(fs::is_symlink(link));
  EXPECT_TRUE(fs::is_regular_file(dir / "real"));
  EXPECT_EQ(read_loads(link), (ExpertLoads{{3, {1, 2}}}));
  EXPECT_TRUE(read_loads("/dev/null").empty());
}

TEST(ExpertBalance, TheWorstLayerMovesAndOnlyWhereItHelps) {
  BalanceSettings s;
  s.ranks = 2, s.spare = 4;
  ExpertBalance b(s);
  for (const size_t layer : {1u, 2u}) b.add_layer(layer, 8);
  EXPECT_FALSE(b.next_move());  // nothing was counted
  b.count(1, std::vector<uint32_t>{90, 60, 60, 60, 60, 30, 30, 30});
  b.count(2, std::vector<uint32_t>{400, 10, 10, 10, 10, 10, 10, 10});
  // Copies at first: 0 1 2 3 4 5 | 6 7 0 1 2 3.
  const double before = b.imbalance(2);
  const std::optional<ExpertBalance::Move> move = b.next_move();
  if (before > 1.2) {
    ASSERT_TRUE(move);
    EXPECT_EQ(move->layer, 2u);
    b.place(2, move->expert_of);
    EXPECT_LT(b.imbalance(2), before);
    EXPECT_FALSE(b.next_move() && b.next_move()->layer == 2);
  }
  // All rows at one expert that has a copy on each rank: even.
  ExpertBalance one(s);
  one.add_layer(0, 8, {{0, {1000, 0, 0, 0, 0, 0, 0, 0}}});
  EXPECT_NEAR(one.imbalance(0), 1, 0.35);
  EXPECT_THROW(b.place(1, {0, 1}), Error);
  EXPECT_THROW(b.place(1, std::vector<uint32_t>(12, 9)), Error);
}

TEST(ExpertBalance, CountsAreHalved) {
  BalanceSettings s;
  s.ranks = 2, s.half_life = 3;
  ExpertBalance b(s);
  b.add_layer(0, 2);
  b.count(0, std::vector<uint32_t>{9, 4});
  b.end_step(), b.end_step();
  EXPECT_EQ(b.load(0)[0], 9u);
  b.end_step();
  EXPECT_EQ(b.load(0)[0], 4u);
  EXPECT_EQ(b.load(0)[1], 2u);
}

TEST(ExpertBalance, FilesOfLoads) {
  const ExpertLoads loads{{0, {1, 2, 3}}, {7, {}}, {2, {0, uint64_t{1} << 53}}};
  EXPECT_EQ(parse_loads(write_loads(loads), "f"), loads);
  for (const char* text :
       {"", "{}", "[]", R"({"moebius_expert_loads":2,"layers":{}})",
        R"({"moebius_expert_loads":1})", R"({"moebius_expert_loads":1,"layers":[1]})",
        R"({"moebius_expert_loads":1,"layers":{"x":[1]}})",
        R"({"moebius_expert_loads":1,"layers":{"0":[-1]}})",
        R"({"moebius_expert_loads":1,"layers":{"0":[1.5]}})",
        R"({"moebius_expert_loads":1,"layers":{"0":7}})",
        R"({"moebius_expert_loads":1,"layers":{"0":[1],"0":[2]}})",
        R"({"moebius_expert_loads":1,"layers":{"0":[9007199254740993]}})",
        R"({"moebius_expert_loads":1,"layers":{"70000":[1]}})"})
    EXPECT_THROW(parse_loads(text, "f"), Error) << text;
}

// --- a model ---

Checkpoint golden(const char* name) {
  return Checkpoint::open((test::test_data_dir() / "golden" / name).string());
}

struct StepsRun {
  std::vector<float> logits;
  uint64_t moved = 0, given_up = 0;
  size_t first_moved = SIZE_MAX;  // step
};

// Steps of one sequence with several rows each; some pause, so that threads beside them can read.
StepsRun run_steps(DecoderModel& model, size_t vocab, size_t steps) {
  StepsRun r;
  SequenceState state = model.new_sequence();
  std::vector<float> some;
  for (size_t i = 0; i < steps; ++i) {
    if (i % 8 == 0) state = model.new_sequence();
    std::vector<int32_t> tokens;
    for (size_t k = 0; k < 6; ++k) tokens.push_back(static_cast<int32_t>((i * 3 + k * k) % vocab));
    const StepItem item{&state, tokens, true};
    model.forward({&item, 1}, some);
    r.logits.insert(r.logits.end(), some.begin(), some.end());
    if (model.last_step().layers_moved > 0 && r.first_moved == SIZE_MAX) r.first_moved = i;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  r.moved = model.last_step().layers_moved, r.given_up = model.last_step().moves_given_up;
  return r;
}

ModelOptions balance_options(ThreadPool& pool) {
  ModelOptions o;
  o.pool = &pool;
  o.context = 64;
  o.balance.check_every = 4;
  o.balance.threshold = 1.0;  // whatever helps moves
  return o;
}

TEST(ExpertBalance, LayersChangeWhileStepsRunWithoutChangingBytes) {
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "deepseekv3-w4a8-g32", "olmoe-fp8-static"}) {
    const Checkpoint checkpoint = golden(name);
    const auto vocab = static_cast<size_t>(checkpoint.config().vocab);
    ThreadPool pool(1);
    const ModelOptions options = balance_options(pool);
    const StepsRun want = run_steps(*DecoderModel::load(checkpoint, options), vocab, 96);
    uint64_t moved = 0;
    for (const RankSplit& split : {RankSplit{1, 1, 2, false, 2}, RankSplit{1, 1, 3, false, 1},
                                   RankSplit{1, 2, 2, false, 4}, RankSplit{2, 1, 2, true, 2}}) {
      SCOPED_TRACE(std::string(name) + " " + describe(split));
      try {
        ThreadRankedModel ranked(checkpoint, options, split, {});
        const StepsRun got = run_steps(ranked.model(), vocab, 96);
        ASSERT_EQ(got.logits.size(), want.logits.size());
        EXPECT_EQ(
            std::memcmp(got.logits.data(), want.logits.data(), want.logits.size() * sizeof(float)),
            0);
        EXPECT_EQ(got.given_up, 0u);
        EXPECT_GE(ranked.model().last_step().rank_imbalance, 1.0);
        moved += got.moved;
      } catch (const Error& e) {
        ADD_FAILURE() << e.what();
      }
    }
    EXPECT_GT(moved, 0u) << name;
  }
}

TEST(ExpertBalance, LoadsAreKeptForTheNextStart) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  const auto vocab = static_cast<size_t>(checkpoint.config().vocab);
  const test::TempDir folder;
  ThreadPool pool(1);
  ModelOptions options = balance_options(pool);
  options.balance.check_every = 1000;
  options.loads_file = (folder.path() / "loads.json").string();
  const RankSplit split{1, 1, 2, false, 4};
  const std::vector<float> want =
      run_steps(*DecoderModel::load(checkpoint, options), vocab, 20).logits;
  { ThreadRankedModel ranked(checkpoint, options, split, {}); }
  EXPECT_FALSE(std::filesystem::exists(options.loads_file));  // nothing was counted
  for (size_t i = 0; i < 2; ++i) {
    ThreadRankedModel ranked(checkpoint, options, split, {});
    EXPECT_EQ(run_steps(ranked.model(), vocab, 20).logits, want);
  }
  const ExpertLoads loads = parse_loads(read_text_file(options.loads_file, 1 << 20), "loads");
  EXPECT_EQ(loads.size(), checkpoint.moe_blocks().size());
  for (const auto& [layer, rows] : loads) {
    uint64_t sum = 0;
    for (const uint64_t n : rows) sum += n;
    EXPECT_GT(sum, 0u);
  }
  write_file_atomically(options.loads_file, {});
  EXPECT_THROW(ThreadRankedModel(checkpoint, options, split, {}), Error);
}

TEST(ExpertBalance, ALayerThatIsNotReadyInTimeStays) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  const auto vocab = static_cast<size_t>(checkpoint.config().vocab);
  ThreadPool pool(1);
  ModelOptions options = balance_options(pool);
  options.balance.patience = -1;
  std::vector<std::string> lines;
  options.warn = [&](const std::string& line) { lines.push_back(line); };
  const StepsRun want = run_steps(*DecoderModel::load(checkpoint, options), vocab, 100);
  ThreadRankedModel ranked(checkpoint, options, {1, 1, 2, false, 2}, {});
  const StepsRun got = run_steps(ranked.model(), vocab, 100);
  EXPECT_EQ(got.logits, want.logits);
  if (got.given_up > 0) {
    ASSERT_FALSE(lines.empty());
    EXPECT_NE(lines[0].find("not ready after"), std::string::npos) << lines[0];
  }
}

}  // namespace
}  // namespace moebius::expert_balance_test
