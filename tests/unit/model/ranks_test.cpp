// SPDX-License-Identifier: Apache-2.0
// One model on several ranks gives the bytes of one process. Ranks are threads here.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <mutex>

#include "base/error.h"
#include "engine/engine.h"
#include "model/arch/arch.h"
#include "model/plan/model_part.h"
#include "model/plan/rank_plan.h"
#include "model/ranks/ranked_model.h"
#include "model/ranks/step_plan.h"
#include "model/run/scoring.h"
#include "unit/test_util.h"

namespace moebius::ranks_test {
namespace {

namespace fs = std::filesystem;

Checkpoint golden(const std::string& name) {
  return Checkpoint::open((test::test_data_dir() / "golden" / name).string());
}

ModelOptions options_for(ThreadPool& pool, XType type) {
  ModelOptions o;
  o.pool = &pool;
  o.type = type;
  o.context = 64;
  return o;
}

std::vector<int32_t> some_tokens(const Checkpoint& c, size_t n) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < n; ++i)
    tokens.push_back(static_cast<int32_t>((i * 7 + i * i) % static_cast<size_t>(c.config().vocab)));
  return tokens;
}

// Two sequences share steps: pieces of the first, then single tokens of both.
std::vector<float> logits_of(DecoderModel& model, const std::vector<int32_t>& tokens) {
  SequenceState a = model.new_sequence(), b = model.new_sequence();
  std::vector<float> all, some;
  const auto step = [&](std::initializer_list<StepItem> items) {
    model.forward({items.begin(), items.size()}, some);
    all.insert(all.end(), some.begin(), some.end());
  };
  const std::span<const int32_t> t(tokens);
  const size_t half = t.size() / 2;
  step({{&a, t.first(half), true, t.size()}});
  step({{&a, t.subspan(half, 1), true, t.size()}, {&b, t.subspan(1, 5), false}});
  step({{&b, t.subspan(6, 1), true}, {&a, t.subspan(half + 1), true, t.size()}});
  return all;
}

void expect_same(const std::vector<float>& want, const std::vector<float>& got,
                 const std::string& what) {
  ASSERT_EQ(want.size(), got.size()) << what;
  size_t different = 0;
  for (size_t i = 0; i < want.size(); ++i)
    different += std::memcmp(&want[i], &got[i], sizeof(float)) != 0;
  EXPECT_EQ(different, 0u) << what;
}

void expect_bytes_of_one(const std::string& name, std::span<const RankSplit> splits, XType type,
                         size_t threads = 1) {
  const Checkpoint checkpoint = golden(name);
  const std::vector<int32_t> tokens = some_tokens(checkpoint, 20);
  ThreadPool pool(threads);
  const ModelOptions options = options_for(pool, type);
  const std::vector<float> want = logits_of(*DecoderModel::load(checkpoint, options), tokens);
  for (const RankSplit& split : splits) {
    SCOPED_TRACE(name + " " + describe(split));
    try {
      ThreadRankedModel ranked(checkpoint, options, split, {});
      expect_same(want, logits_of(ranked.model(), tokens), name + " " + describe(split));
    } catch (const Error& e) {
      ADD_FAILURE() << name << ": " << e.what();
    }
  }
}

TEST(Ranks, StagesGiveTheBytesOfOneProcess) {
  const RankSplit splits[] = {{2, 1, 1}};
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "gptoss-mxfp4-native", "deepseekv3-w4a8-g32",
                           "kimilinear-w4a16-g32", "granitehybrid-fp8-dynamic"})
    expect_bytes_of_one(name, splits, XType::kBf16);
}

TEST(Ranks, OutputsApartGiveTheBytesOfOneProcess) {
  const RankSplit splits[] = {{1, 2, 1}, {1, 3, 1}, {2, 2, 1}};
  for (const char* name :
       {"qwen3moe-w4a8-g32-pack", "gptoss-mxfp4-native", "deepseekv3-w4a8-g32",
        "kimilinear-w4a16-g32", "olmoe-fp8-static", "mixtral-w4a16-actorder-group"})
    expect_bytes_of_one(name, splits, XType::kBf16);
  for (const char* name : {"gemma4-w4a16-g32", "qwen3moe-fp8-block"})  // one stage is all they have
    expect_bytes_of_one(name, std::span(splits).first(2), XType::kBf16);
}

TEST(Ranks, ExpertsApartGiveTheBytesOfOneProcess) {
  const RankSplit splits[] = {{1, 1, 2}, {1, 1, 3}, {2, 1, 2}};
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "gptoss-mxfp4-native", "deepseekv3-w4a8-g32",
                           "qwen2moe-w4a16-g32", "llama4-fp8-dynamic", "granitehybrid-fp8-dynamic"})
    expect_bytes_of_one(name, splits, XType::kBf16);
}

TEST(Ranks, ExpertsApartAndCut) {
  const RankSplit splits[] = {{1, 2, 2}, {1, 3, 2}, {1, 1, 2, true}, {2, 1, 2, true}};
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "gptoss-mxfp4-native", "deepseekv3-w4a8-g32",
                           "qwen2moe-w4a16-g32", "granitehybrid-fp8-dynamic"})
    expect_bytes_of_one(name, splits, XType::kBf16);
  for (const char* name :
       {"llama4-fp8-dynamic", "gemma4-w4a16-g32", "longcatflash-w4a16-g32", "minimaxm3-dense",
        "beam-dense", "hyv4-dense", "deepseekv4-dense", "axk2-dense", "jamba-dense",
        "mistrallarge4-dense", "dbrx-dense", "inkling-dense", "glm5next-dense", "qwen4exp-dense"})
    expect_bytes_of_one(name, std::span(splits).first(2), XType::kBf16, 2);
}

// What other methods store: columns of words, blocks that no scale fills, exponents, offsets, widths
// by module.
TEST(Ranks, OtherMethodsGiveTheBytesOfOneProcess) {
  const RankSplit splits[] = {{1, 2, 1}, {1, 1, 2}, {2, 1, 1}};
  for (const char* name : {"deepseekv3-awq-g16", "qwen3moe-gptq-v2-dynamic",
                           "mixtral-mlx-real-modes", "glm4moe-modelopt-nvfp4"})
    expect_bytes_of_one(name, splits, XType::kBf16);
  expect_bytes_of_one("qwen3moe-native-fp8-ragged", std::span(splits).first(2), XType::kBf16);
}

// Every golden folder in every form, behind MOEBIUS_FULL.
TEST(Ranks, EveryFolderInEveryForm) {
  if (!test::full_run()) GTEST_SKIP() << "set MOEBIUS_FULL=1";
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    if (!fs::exists(entry.path() / "config.json")) continue;
    const std::string name = entry.path().filename().string();
    std::vector<RankSplit> splits;
    const Checkpoint checkpoint = golden(name);
    const DecoderSpec spec = decoder_spec(checkpoint.config());
    const auto has_stages = [&](size_t n) {
      try {
        return plan_stages(checkpoint, spec, n).size() == n + 1;
      } catch (const Error&) {
        return false;
      }
    };
    const size_t experts =
        checkpoint.moe_blocks().empty() ? 0 : checkpoint.moe_blocks()[0].experts.size();
    for (const size_t n : {2u, 3u, 4u, 8u}) {
      if (has_stages(n)) splits.push_back({n, 1, 1});
      splits.push_back({1, n, 1});
      if (experts >= n) splits.push_back({1, 1, n});
    }
    if (has_stages(2)) splits.push_back({2, 2, 1});
    if (experts >= 2) splits.push_back({1, 2, 2}), splits.push_back({1, 1, 2, true});
    if (experts >= 4) splits.push_back({1, 2, 4});
    if (experts >= 2 && has_stages(2)) splits.push_back({2, 1, 2}), splits.push_back({2, 2, 2});
    for (const size_t threads : {1u, 2u}) expect_bytes_of_one(name, splits, XType::kBf16, threads);
    expect_bytes_of_one(name, std::vector<RankSplit>{{1, 2, 1}}, XType::kF32, 2);
  }
}

// Stages work on pieces of a prompt at the same time.
TEST(Ranks, LongPromptsInPieces) {
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "mistral4-w4a16-g32"}) {
    const Checkpoint checkpoint = golden(name);
    const std::vector<int32_t> tokens = some_tokens(checkpoint, 400);
    ThreadPool pool(1);
    const ModelOptions options = options_for(pool, XType::kBf16);
    const std::vector<float> want = logits_of(*DecoderModel::load(checkpoint, options), tokens);
    for (const RankSplit& split : {RankSplit{2, 1, 1}, RankSplit{2, 2, 1}}) {
      ThreadRankedModel ranked(checkpoint, options, split, {});
      expect_same(want, logits_of(ranked.model(), tokens), name + describe(split));
    }
  }
}

TEST(Ranks, EachLoadsItsLayersAndSaysSo) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  ThreadPool pool(1);
  const ModelOptions options = options_for(pool, XType::kBf16);
  const uint64_t whole = DecoderModel::load(checkpoint, options)->loaded_bytes();
  std::mutex mutex;
  std::vector<std::string> lines;
  ThreadRankedModel ranked(checkpoint, options, {2, 1, 1}, [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  ASSERT_EQ(lines.size(), 2u);
  for (const std::string& line : lines)
    EXPECT_NE(line.find("B of weights, "), std::string::npos) << line;
  EXPECT_LT(ranked.model().loaded_bytes(), whole);
}

TEST(Ranks, AnEngineOnRanks) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  ThreadPool pool(1);
  const ModelOptions options = options_for(pool, XType::kBf16);
  const std::vector<int32_t> prompt = some_tokens(checkpoint, 9);
  std::map<uint64_t, std::vector<int32_t>> want;
  const auto generate = [&](Backend& backend, size_t drafts = 0) {
    EngineOptions eo;
    eo.context = 64, eo.parallel = 3;
    eo.drafts = drafts, eo.every_draft = true;
    Engine engine(backend, eo);
    for (uint64_t i = 0; i < 3; ++i) {
      Request r;
      r.prompt = prompt;
      r.prompt.resize(prompt.size() - i);
      r.max_new = 20, r.ignore_stop = true;
      r.sampling.temperature = i == 0 ? 0.0f : 0.8f;
      r.sampling.seed = 7 + i;
      if (drafts > 0) r.prediction = want.at(1 + i);
      engine.add(std::move(r));
    }
    std::map<uint64_t, std::vector<int32_t>> tokens;
    while (!engine.idle()) {
      const StepReport report = engine.step();
      EXPECT_EQ(report.failure, "");
      if (!report.failure.empty()) break;
      for (const StepResult& result : report.results)
        if (result.choice) tokens[result.id].push_back(result.choice->token);
    }
    EXPECT_EQ(engine.snapshot().drafts_right[3] > 0,
              drafts > 0 && backend.batches_in_flight() == 1);
    return tokens;
  };
  want = generate(*DecoderModel::load(checkpoint, options));
  ThreadRankedModel stages(checkpoint, options, {2, 1, 1}, {});
  EXPECT_EQ(generate(stages.model()), want);
  EXPECT_EQ(generate(stages.model(), 5), want);
  ThreadRankedModel outputs(checkpoint, options, {1, 2, 1}, {});
  EXPECT_EQ(generate(outputs.model(), 5), want);
}

TEST(Ranks, WhatCannotBeCutIsRefused) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  ThreadPool pool(1);
  const ModelOptions options = options_for(pool, XType::kBf16);
  const auto error = [&](const RankSplit& split) -> std::string {
    try {
      ThreadRankedModel ranked(checkpoint, options, split, {});
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(error({100, 1, 1}).find("stages"), std::string::npos) << error({100, 1, 1});
  EXPECT_NE(error({1, 2, 1, true}).find("--attention repeat without --ep"), std::string::npos);
  EXPECT_NE(error({1, 2, 600}).find("1200 ranks"), std::string::npos);
}

TEST(Ranks, FiguresOfEveryRank) {
  const RankFigures some{1.5, 0.25, 1e-5, {{"rows of experts", 0.125}, {"beat", 2}}, {0, 12345}};
  const RankFigures back = decode_figures(encode(some));
  EXPECT_EQ(back.step, some.step);
  EXPECT_EQ(back.wait, some.wait);
  EXPECT_EQ(back.phases, some.phases);
  EXPECT_EQ(back.received, some.received);
  EXPECT_THROW(decode_figures("nonsense 1\n"), Error);
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  ThreadPool pool(1);
  ThreadRankedModel ranked(checkpoint, options_for(pool, XType::kBf16), {1, 2, 1}, {});
  logits_of(ranked.model(), some_tokens(checkpoint, 20));
  const std::vector<RankFigures> all = ranked.model().rank_figures(true);
  ASSERT_EQ(all.size(), 2u);
  for (size_t r = 0; r < 2; ++r) {
    EXPECT_GT(all[r].step, all[r].exchange);
    EXPECT_GT(all[r].exchange, 0);
    ASSERT_EQ(all[r].received.size(), 2u);
    EXPECT_GT(all[r].received[1 - r], 0u);
  }
}

TEST(StepPlan, BytesAndBack) {
  StepPlan plan;
  plan.kind = StepPlan::Kind::kStep;
  plan.serial = 77;
  plan.ended = {3, 1ull << 40};
  plan.experts = {1, 0, 7};
  plan.items.push_back({5, 128, 300, LogitsOf::kAll, {1, 2, -3}, {{0, kNoBlock, 7}, {}}});
  plan.items.push_back({});
  const std::vector<uint8_t> bytes = encode(plan);
  EXPECT_EQ(decode_step_plan(bytes), plan);
  for (size_t n = 0; n < bytes.size(); ++n)
    EXPECT_THROW(decode_step_plan(std::span(bytes).first(n)), Error) << n;
  std::vector<uint8_t> more = bytes;
  more.push_back(0);
  EXPECT_THROW(decode_step_plan(more), Error);
}

TEST(Parallel, RangesCoverEverything) {
  for (const uint64_t ranks : {1u, 2u, 3u, 4u, 8u})
    for (const uint64_t n : {8u, 9u, 16u, 31u, 64u, 2048u, 2880u}) {
      uint64_t at = 0;
      for (const Range& r : output_ranges(n, ranks, "w")) {
        EXPECT_EQ(r.begin, at);
        EXPECT_GT(r.end, r.begin);
        at = r.end;
      }
      EXPECT_EQ(at, n);
    }
  EXPECT_THROW(output_ranges(3, 4, "w"), Error);
  for (const uint64_t ranks : {1u, 2u, 3u, 4u, 8u})
    for (const auto& [heads, kv] : {std::pair{8u, 8u}, std::pair{8u, 2u}, std::pair{6u, 3u},
                                    std::pair{4u, 1u}, std::pair{12u, 4u}, std::pair{2u, 2u}}) {
      uint64_t at = 0;
      for (uint64_t r = 0; r < ranks; ++r) {
        const HeadCut c = head_cut(heads, kv, ranks, r);
        EXPECT_EQ(c.given.begin, at);
        at = c.given.end;
        ASSERT_GT(c.heads.size(), 0u);
        ASSERT_GT(c.kv_heads.size(), 0u);
        EXPECT_EQ(c.heads.size() % c.kv_heads.size(), 0u);
        const uint64_t each = c.heads.size() / c.kv_heads.size();
        for (uint64_t h = c.heads.begin; h < c.heads.end; ++h)
          EXPECT_EQ(c.kv_heads.begin + (h - c.heads.begin) / each, h / (heads / kv));
      }
      EXPECT_EQ(at, heads) << heads << " " << kv << " " << ranks;
    }
}

TEST(Parallel, StagesAreEven) {
  const std::vector<uint64_t> bytes = {5, 1, 1, 1, 1, 1};
  const std::vector<bool> any(6, true);
  EXPECT_EQ(stage_layers(bytes, 0, any, 2), (std::vector<size_t>{0, 1, 6}));
  EXPECT_EQ(stage_layers(bytes, 0, any, 1), (std::vector<size_t>{0, 6}));
  EXPECT_EQ(stage_layers(bytes, 0, any, 6), (std::vector<size_t>{0, 1, 2, 3, 4, 5, 6}));
  std::vector<bool> some = any;
  some[1] = some[2] = false;
  EXPECT_EQ(stage_layers(bytes, 0, some, 2), (std::vector<size_t>{0, 3, 6}));
  EXPECT_THROW(stage_layers(bytes, 0, some, 5), Error);
}

TEST(RankPlan, PartsAddUpToTheModel) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  const uint64_t whole = rank_parts(checkpoint, {})[0].bytes;
  uint64_t sum = 0;
  for (const RankPart& p : rank_parts(checkpoint, {2, 1, 1})) {
    EXPECT_LT(p.bytes, whole);
    sum += p.bytes;
  }
  EXPECT_EQ(sum, whole);
  for (const RankSplit& split : {RankSplit{1, 2, 1}, RankSplit{1, 1, 2}})
    for (const RankPart& p : rank_parts(checkpoint, split)) {
      EXPECT_GT(p.bytes, whole / 4) << describe(split);
      EXPECT_LT(p.bytes, whole * 7 / 8) << describe(split);
    }
}

TEST(RankPlan, NodesAndLinksInWords) {
  EXPECT_EQ(parse_node("64x256G").memory, uint64_t{256} << 30);
  EXPECT_EQ(parse_node("64x256G").cores, 64);
  EXPECT_EQ(parse_node("1x8G@24.5G,70G").read_rate(), 24.5e9);
  EXPECT_EQ(parse_node("1x8G@24.5G,70G").multiply_rate(), 70e9);
  EXPECT_NEAR(parse_link("10G,30us").rate, 1.25e9, 1);
  EXPECT_NEAR(parse_link("10G,30us").latency, 30e-6, 1e-9);
  for (const char* text : {"", "64", "64x", "x5G", "64x256", "64x256Q", "-1x2G", "nanx2G", "1x8G@",
                           "1x8G@2G", "1x8G@2G,", "1x8G@2,3G"})
    EXPECT_THROW(parse_node(text), Error) << text;
  for (const char* text : {"", "10G", "10G,", "10,30us", "10G,30", "0G,30us", "10G,30us,"})
    EXPECT_THROW(parse_link(text), Error) << text;
}

TEST(RankPlan, SlowLinksWantStagesFastOnesOutputs) {
  const Checkpoint checkpoint = golden("qwen3moe-w4a8-g32-pack");
  RankQuestion q;
  q.ranks = 2;
  q.node = {64, 0};
  q.link = {1e-3, 1e8};
  EXPECT_EQ(plan_ranks(checkpoint, q).front().split, (RankSplit{2, 1, 1}));
  q.link = {1e-12, 1e15};
  q.batch = 512;
  EXPECT_NE(plan_ranks(checkpoint, q).front().split, (RankSplit{2, 1, 1}));
  q.node.memory = 1000;
  const RankForecast none = plan_ranks(checkpoint, q).front();
  EXPECT_FALSE(none.fits());
  EXPECT_NE(none.reason.find("missing"), std::string::npos);
  q.ranks = 64;  // more than layers, heads and experts
  for (const RankForecast& f : plan_ranks(checkpoint, q)) EXPECT_FALSE(f.reason.empty());
}

}  // namespace
}  // namespace moebius::ranks_test
