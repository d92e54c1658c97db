// SPDX-License-Identifier: Apache-2.0
// Experts of the CPU that are streamed through a CUDA device for steps with many rows: from when on, what they need, and that no byte
// depends on it. The device is the emulated plugin (tests/gpu/emulated_plugin.cpp), which has their weights nowhere else than in the
// buffers that they are copied into.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "base/error.h"
#include "device/cuda/cuda_device.h"
#include "device/cuda/cuda_items.h"
#include "device/cuda/cuda_streams.h"
#include "model/plan/gpu_stream_plan.h"
#include "model/run/decoder.h"
#include "unit/device/cuda_model_util.h"
#include "unit/device/cuda_util.h"
#include "unit/test_util.h"

namespace moebius::cuda_streams_test {
namespace {

using test::emulated, test::run_pieces, test::run_whole;

// --- the rule ---

TEST(StreamRule, RowsPayForWhatIsSent) {
  // A layer of 311 MB over 55 GB/s, 20 us a row on the CPU.
  const StreamTimes t{0, 20e-6, 311e6 / 55e9, 0.2e-6};
  const size_t rows = rows_to_stream(t);
  EXPECT_EQ(rows, 286u);
  EXPECT_LT(t.on_gpu(static_cast<double>(rows)), t.on_cpu(static_cast<double>(rows)));
  EXPECT_GE(t.on_gpu(static_cast<double>(rows - 1)), t.on_cpu(static_cast<double>(rows - 1)));
  // Half the bytes, or twice the rate: half of the rows. A CPU twice as fast: twice as many.
  EXPECT_EQ(rows_to_stream({0, 20e-6, 311e6 / 110e9, 0.2e-6}), 143u);
  EXPECT_EQ(rows_to_stream({0, 10e-6, 311e6 / 55e9, 0.2e-6}), 577u);
  // Reading on the CPU counts for the device, as far as rows meet experts.
  EXPECT_EQ(rows_to_stream({5.6e-3, 20e-6, 311e6 / 55e9, 0.2e-6, 1}), 3u);
  EXPECT_EQ(rows_to_stream({9e-3, 20e-6, 5e-3, 0.2e-6, 1}), 1u);
  // A CPU that reads more slowly than the link sends: one row meets 8 of 128 experts, and all would cross.
  const StreamTimes slow{13e-3, 20e-6, 5.7e-3, 0.2e-6, 8.0 / 128};
  EXPECT_LT(slow.on_cpu(1), 0.2 * slow.on_gpu(1));
  const size_t some = rows_to_stream(slow);
  EXPECT_GT(some, 5u);
  EXPECT_LT(some, 20u);
  EXPECT_LT(slow.on_gpu(static_cast<double>(some)), slow.on_cpu(static_cast<double>(some)));
  EXPECT_GE(slow.on_gpu(static_cast<double>(some - 1)), slow.on_cpu(static_cast<double>(some - 1)));
  // A device that is no faster with any number.
  EXPECT_EQ(rows_to_stream({0, 1e-6, 1e-3, 1e-6}), kNeverStreamed);
  EXPECT_EQ(rows_to_stream({0, 1e-6, 1e-3, 5e-6}), kNeverStreamed);
  EXPECT_EQ(rows_to_stream({}), kNeverStreamed);
  EXPECT_EQ(rows_to_stream({0, 1e-15, 1.0, 0}), kNeverStreamed);
  EXPECT_EQ(rows_to_stream({0, std::nan(""), 1.0, 0}), kNeverStreamed);
}

TEST(StreamRule, TimesOfTwoMeasurements) {
  for (const double each : {1.0, 0.0625}) {
    const StreamTimes t = stream_times({32, 2.5e-3}, {256, 7e-3}, each, 5.7e-3, {256, 0.128e-3});
    EXPECT_NEAR(t.on_cpu(32), 2.5e-3, 1e-9);
    EXPECT_NEAR(t.on_cpu(256), 7e-3, 1e-9);
    EXPECT_NEAR(t.gpu_row, 0.5e-6, 1e-12);
    EXPECT_NEAR(t.cpu_row, 4.5e-3 / 224, 2e-6);
  }
  // Noise: more rows that took less time.
  EXPECT_EQ(rows_to_stream(stream_times({32, 2e-3}, {256, 1e-3}, 1, 5e-3, {256, 1e-4})),
            kNeverStreamed);
}

TEST(StreamRule, WhatIsAskedFor) {
  EXPECT_EQ(parse_stream_rows("off"), SIZE_MAX);
  EXPECT_EQ(parse_stream_rows("auto"), 0u);
  EXPECT_EQ(parse_stream_rows("1"), 1u);
  EXPECT_EQ(parse_stream_rows("1000000"), 1000000u);
  for (const char* bad : {"", "0", "-1", "1000001", "12x", "on", "99999999999999999999"})
    EXPECT_THROW(static_cast<void>(parse_stream_rows(bad)), Error) << bad;
}

// --- what they need ---

class CudaStreaming : public test::EmulatedModels {
 protected:
  CudaStreaming() : EmulatedModels(2) {}
  void SetUp() override {
    EmulatedModels::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    library_ = ::dlopen(test::emulated_plugin().c_str(), RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(library_, nullptr);
  }
  void TearDown() override {
    if (library_ == nullptr) return;
    fail(0, 0);
    ::dlclose(library_);
  }
  size_t called(const char* name) const {
    return reinterpret_cast<size_t (*)()>(::dlsym(library_, name))();
  }
  size_t streamed() const { return called("moebius_emulated_streamed"); }
  size_t moved() const { return called("moebius_emulated_moves"); }
  void fail(size_t upload, size_t expert) const {
    reinterpret_cast<void (*)(size_t, size_t)>(::dlsym(library_, "moebius_emulated_fail"))(upload,
                                                                                           expert);
  }
  ModelOptions options(const char* placement, const char* stream, XType type = XType::kF32) {
    ModelOptions o = EmulatedModels::options(placement, type);
    o.gpu.stream = stream;
    return o;
  }
  // A third of the experts of each layer on the device, others in every layer; none where `here` is false.
  ModelOptions hybrid(const Checkpoint& checkpoint, const char* stream, bool here,
                      XType type = XType::kF32) {
    ModelOptions o = options(here ? "cuda" : "cuda,experts=cpu", stream, type);
    if (here) o.placement.divided = test::third_of_experts(checkpoint);
    const ModelPlan plan = test::plan_here(checkpoint, o);
    o.placement = plan.ranks[0].placement, o.gpu.streamed = plan.ranks[0].streamed;
    words_ = plan.words;
    return o;
  }
  StreamPlan plan(const Checkpoint& checkpoint, const ModelOptions& o, uint64_t allowed,
                  uint64_t host) const {
    return plan_streams(checkpoint, o, cuda_target(emulated().facts), allowed, host);
  }
  std::string words() const {
    std::string all;
    for (const std::string& w : words_) all += w + "\n";
    return all;
  }
  void* library_ = nullptr;
  std::vector<std::string> words_;
};

bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

TEST_F(CudaStreaming, ThePlanCountsBuffersAndTheSecondCopy) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  const size_t layers = checkpoint.moe_blocks().size();
  ASSERT_GT(layers, 1u);
  ModelOptions o = options("cuda,experts=cpu", "7");
  const StreamPlan all = plan(checkpoint, o, UINT64_MAX, UINT64_MAX);
  EXPECT_EQ(all.streamed.layers.size(), layers);
  EXPECT_EQ(all.streamed.buffers, 2u);
  EXPECT_EQ(all.streamed.rows, 7u);
  EXPECT_EQ(all.streamed.host_bytes, layers * all.streamed.buffer_bytes);
  EXPECT_NE(all.words.at(0).find("can be streamed"), std::string::npos);
  // Routers go to the device, experts do not.
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    EXPECT_TRUE(is_gpu_name(all.placement.of(static_cast<size_t>(b.layer)).experts));
    EXPECT_TRUE(all.placement.divided.at(static_cast<size_t>(b.layer)).empty());
  }
  o.placement = all.placement, o.gpu.streamed = all.streamed;
  const GpuTarget target = cuda_target(emulated().facts);
  const GpuBytes with = gpu_bytes(checkpoint, o, target);
  o.gpu.streamed = {};
  const GpuBytes without = gpu_bytes(checkpoint, o, target);
  EXPECT_EQ(device_bytes(with) - device_bytes(without), 2 * all.streamed.buffer_bytes);
  EXPECT_EQ(with.host - without.host, all.streamed.host_bytes);
  // Rows between the parts of divided layers are counted, too.
  o.placement = parse_placement("cuda,experts=cpu");
  EXPECT_EQ(without.work, gpu_bytes(checkpoint, o, target).work + divided_work(checkpoint, o.gpu));
  EXPECT_GT(divided_work(checkpoint, o.gpu), 0u);

  // Room for one buffer; for none: words with the numbers, and the placement that was asked for.
  const uint64_t one = device_bytes(without) + all.streamed.buffer_bytes;
  EXPECT_EQ(plan(checkpoint, o, one, UINT64_MAX).streamed.buffers, 1u);
  const StreamPlan none = plan(checkpoint, o, one - 1, UINT64_MAX);
  EXPECT_TRUE(none.streamed.layers.empty());
  EXPECT_TRUE(none.placement.divided.empty());
  EXPECT_NE(none.words.at(0).find("not streamed: a layer's are"), std::string::npos);
  // Memory of the host for one layer less.
  const uint64_t host = without.host + (all.streamed.host_bytes - 1) * 2;
  const StreamPlan fewer = plan(checkpoint, o, UINT64_MAX, host);
  EXPECT_EQ(fewer.streamed.layers.size(), layers - 1);
  EXPECT_EQ(fewer.placement.divided.size(), layers - 1);
  EXPECT_NE(fewer.words.at(0).find("second copy"), std::string::npos);
  EXPECT_TRUE(plan(checkpoint, o, UINT64_MAX, 0).streamed.layers.empty());
  // What --experts auto leaves free of experts: two buffers or one in half of the room.
  const uint64_t b = all.streamed.buffer_bytes;
  const auto kept = [&](uint64_t room) { return kept_for_streams(checkpoint, o, target, room); };
  EXPECT_EQ(kept(4 * b), 2 * b);
  EXPECT_EQ(kept(4 * b - 1), b);
  EXPECT_EQ(kept(2 * b - 1), 0u);
  // Nothing is asked for, or plain kernels are all that there is.
  o.gpu.stream = "off";
  EXPECT_TRUE(plan(checkpoint, o, UINT64_MAX, UINT64_MAX).words.empty());
  EXPECT_EQ(kept(4 * b), 0u);
  o.gpu.stream = "auto";
  EXPECT_NE(plan(checkpoint, o, UINT64_MAX, UINT64_MAX).words.at(0).find("tensor-core"),
            std::string::npos);
}

TEST_F(CudaStreaming, BuffersThatDoNotFitAreRefusedBeforeLoading) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  ModelOptions o = hybrid(checkpoint, "4", false);
  ASSERT_FALSE(o.gpu.streamed.layers.empty()) << words();
  o.gpu.streamed.buffer_bytes = uint64_t{8} << 30;
  o.gpu.stream = "off";  // nothing is planned anew
  try {
    test::fitting_plan(checkpoint, o);
    FAIL() << "16 GiB of buffers on a device of 4";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("may be used"), std::string::npos) << e.what();
  }
}

// Experts that the GPU has in other last bits would make a row depend on its batch. Tensor cores add FP8 products in
// an order of their own, whatever the CPU does; in experts of these sizes they run.
TEST_F(CudaStreaming, FloatSchemesAreNotStreamed) {
  const GpuTarget target = named_gpu_target("H200");
  for (const char* stream : {"auto", "4"})
    for (const char* name : {"qwen3moe-fp8-dynamic", "qwen3moe-w8a8-dynamic"}) {
      SCOPED_TRACE(name);
      const Checkpoint checkpoint = test::golden_folder(name);
      MoeBlock block = checkpoint.moe_blocks()[0];
      std::vector<Module> modules;
      for (const Module* m : block.experts[0]) {
        modules.push_back(*m);
        modules.back().plan.N = 1024, modules.back().plan.K = 1024;
      }
      for (auto& expert : block.experts) expert = {&modules[0], &modules[1], &modules[2]};
      block.spec.hidden = block.spec.intermediate = 1024;
      const std::string why =
          StreamPlanner(checkpoint, options("cuda,experts=cpu", stream, XType::kBf16), target)
              .refusal(block);
      if (std::string(name).find("fp8") != std::string::npos)
        EXPECT_NE(why.find("not in every bit"), std::string::npos) << why;
      else
        EXPECT_EQ(why, "");
    }
}

// --- equal bytes ---

TEST_F(CudaStreaming, NoByteDependsOnIt) {
  XType type = XType::kF32;
  for (const char* name : {"qwen3moe-w4a8-g32-pack", "gptoss-w8a8", "granitemoeshared-w8a8"})
    for (const bool here : {false, true}) {
      SCOPED_TRACE(std::string(name) + (here ? " divided" : ""));
      const Checkpoint checkpoint = test::golden_folder(name);
      const auto whole = DecoderModel::load(checkpoint, options("cuda", "off", type)),
                 cpu = DecoderModel::load(checkpoint, hybrid(checkpoint, "1000000", here, type)),
                 model = DecoderModel::load(checkpoint, hybrid(checkpoint, "4", here, type));
      const std::vector<int32_t> tokens = test::random_tokens(40, whole->vocab());
      const std::vector<float> want = run_whole(*whole, tokens);
      const size_t before = streamed();
      EXPECT_TRUE(same_bytes(want, run_whole(*cpu, tokens)));
      EXPECT_EQ(streamed(), before);
      EXPECT_TRUE(same_bytes(want, run_whole(*model, tokens)));
      EXPECT_EQ(streamed(), before + checkpoint.moe_blocks().size());
      // Many rows, one, few, in steps that are streamed and in others, the same sizes again (graphs).
      const size_t ends[] = {15, 16, 17, 18, 21, 24, 29, 34, 35, 40};
      EXPECT_TRUE(same_bytes(want, run_pieces(*model, tokens, ends)));
      type = type == XType::kF32 ? XType::kBf16 : XType::kF32;
    }
}

// Long calls go in pieces: of rows that cross, and, with weights that cross once, of those that do not.
TEST_F(CudaStreaming, LongCallsGoInPieces) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  const MoeBlock& block = checkpoint.moe_blocks()[0];
  const size_t row = block.spec.router.top_k * block.spec.hidden * sizeof(float);
  const auto whole = DecoderModel::load(checkpoint, options("cuda", "off"));
  const std::vector<int32_t> tokens = test::random_tokens(43, whole->vocab());
  const std::vector<float> want = run_whole(*whole, tokens);
  EXPECT_EQ(CudaItemsCall::most_rows(block.spec.router.top_k, block.spec.hidden, 5 * row), 5u);
  for (const char* stream : {"1000000", "6"})
    for (const size_t rows : {1u, 5u, 42u}) {
      SCOPED_TRACE(std::string(stream) + " " + std::to_string(rows));
      ModelOptions o = hybrid(checkpoint, stream, true);
      o.gpu.item_bytes = rows * row;
      const auto model = DecoderModel::load(checkpoint, o);
      const size_t before = streamed(), pieces = (tokens.size() + rows - 1) / rows;
      EXPECT_TRUE(same_bytes(want, run_whole(*model, tokens)));
      EXPECT_EQ(streamed() - before, *stream == '6' ? pieces * checkpoint.moe_blocks().size() : 0);
      const size_t ends[] = {13, 14, 30, 43};
      EXPECT_TRUE(same_bytes(want, run_pieces(*model, tokens, ends)));
    }
}

TEST_F(CudaStreaming, MeasuredOnThisMachine) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  ModelOptions o = hybrid(checkpoint, "4", false);
  o.gpu.streamed.rows = 0;  // as "auto" does it
  std::string said;
  o.gpu.note = [&](const std::string& line) { said += line + "\n"; };
  const auto whole = DecoderModel::load(checkpoint, options("cuda", "off")),
             model = DecoderModel::load(checkpoint, o);
  EXPECT_NE(said.find("cross to the GPU in"), std::string::npos) << said;
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  const std::vector<int32_t> tokens = test::random_tokens(40, whole->vocab());
  EXPECT_TRUE(same_bytes(run_whole(*whole, tokens), run_whole(*model, tokens)));
}

// Layers are packed in the buffers, also after an earlier layer was sent there to be timed.
TEST_F(CudaStreaming, ALayerThatIsLoadedTakesTheBuffer) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  const std::span<const MoeBlock> blocks = checkpoint.moe_blocks();
  const CudaApi& api = *emulated().api;
  const size_t slots = blocks[0].spec.router.top_k, hidden = blocks[0].spec.hidden, rows = 3;
  std::vector<uint32_t> expert_of(blocks[0].experts.size());
  std::iota(expert_of.begin(), expert_of.end(), 0u);
  CudaLoad load;
  load.module = &emulated(), load.x_type = XType::kF32, load.router_matrix = false;
  load.policy.where_it_can = true;
  LayerLoadOptions options;
  options.x_type = XType::kF32;
  ThreadPool pool(1);
  CpuDevice cpu(&pool, host_cpu(), {XType::kF32, {}});
  CudaStreams streams(
      api, 1,
      StreamPlanner(checkpoint, ModelOptions(), cuda_target(emulated().facts)).bytes(blocks[0], 0));
  const StreamedExperts first(streams, checkpoint, blocks[0], load, expert_of);
  const CpuExpertPart part(cpu, checkpoint, blocks[0], options, expert_of, 0);
  static_cast<void>(streams.times(first, part, slots));
  const StreamedExperts second(streams, checkpoint, blocks[1], load, expert_of);

  std::vector<float> x(rows * hidden), weights(rows * slots, 0.5f);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 17) - 8.0f;
  std::vector<int32_t> ids(rows * slots), at(rows * slots);
  for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i % expert_of.size());
  const auto run = [&](const StreamedExperts& layer) {
    std::vector<float> made(rows * slots * hidden);
    const CudaRows from{x.data(), XType::kF32, rows, hidden};
    const CudaRouting routing{ids.data(), weights.data(), nullptr, slots};
    const CudaDivided to{{made.data(), at.data()}, {}, nullptr, nullptr};
    CudaStreams::Turn turn(streams, layer, nullptr);
    EXPECT_EQ(api.run_items(layer.layer().get(), &from, &routing, &to, nullptr), CudaStatus::kOk);
    turn.end();
    return made;
  };
  const std::vector<float> made = run(first), other = run(second);
  EXPECT_TRUE(same_bytes(made, run(first)));
  EXPECT_FALSE(same_bytes(made, other));
}

TEST_F(CudaStreaming, OneBufferIsEnough) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  const auto whole = DecoderModel::load(checkpoint, options("cuda", "off"));
  ModelOptions o = hybrid(checkpoint, "4", true);
  ASSERT_EQ(o.gpu.streamed.buffers, 2u) << words();
  o.gpu.streamed.buffers = 1;
  const auto model = DecoderModel::load(checkpoint, o);
  const std::vector<int32_t> tokens = test::random_tokens(30, whole->vocab());
  const std::vector<float> want = run_whole(*whole, tokens);
  const size_t before = streamed();
  for (int round = 0; round < 3; ++round) EXPECT_TRUE(same_bytes(want, run_whole(*model, tokens)));
  EXPECT_GT(streamed(), before);
}

TEST_F(CudaStreaming, BatchesInFlightWhileExpertsMove) {
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-w4a8-g32-pack");
  const auto whole = DecoderModel::load(checkpoint, options("cuda", "off"));
  ModelOptions o = hybrid(checkpoint, "10", true);
  o.balance.check_every = 1;
  const auto model = DecoderModel::load(checkpoint, o);
  const size_t kinds = model->kv_kinds().size(), before = moved(), sent = streamed();
  ASSERT_EQ(model->batches_in_flight(), 2u);
  const std::vector<int32_t> a = test::random_tokens(12, whole->vocab(), 3),
                             b = test::random_tokens(11, whole->vocab(), 4),
                             c = test::random_tokens(5, whole->vocab(), 4);
  const std::vector<float> want[] = {run_whole(*whole, a), run_whole(*whole, b),
                                     run_whole(*whole, c)};
  for (int round = 0; round < 30; ++round) {
    const auto& second_tokens = round % 2 == 0 ? b : c;
    const BlockTables first(kinds, {0}), second(kinds, {1});
    const BatchItem one{&first, 0, a, LogitsOf::kAll},
        two{&second, 0, second_tokens, LogitsOf::kAll};
    const auto x = model->submit({&one, 1}), y = model->submit({&two, 1});
    StepOutput out;
    model->collect(x, out);
    ASSERT_TRUE(same_bytes(want[0], out.logits)) << round;
    model->collect(y, out);
    ASSERT_TRUE(same_bytes(want[1 + round % 2], out.logits)) << round;
  }
  EXPECT_GT(moved(), before);
  EXPECT_GT(streamed(), sent);
}

// --- what fails ---

// A copy that fails ends its step, not the model; what was half there is sent again.
TEST_F(CudaStreaming, AFailedCopyEndsTheStep) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  ModelOptions o = hybrid(checkpoint, "4", false);
  ASSERT_GT(o.gpu.streamed.layers.size(), 1u) << words();
  o.gpu.streamed.buffers = 1;  // so every layer is sent in every step
  const auto whole = DecoderModel::load(checkpoint, options("cuda", "off")),
             model = DecoderModel::load(checkpoint, o);
  const std::vector<int32_t> tokens = test::random_tokens(12, whole->vocab());
  const std::vector<float> want = run_whole(*whole, tokens);
  size_t failed = 0, of_experts = 0;
  for (size_t upload = 1; upload < 50; ++upload) {
    fail(upload, 0);
    try {
      EXPECT_TRUE(same_bytes(want, run_whole(*model, tokens)));
      break;  // it has fewer
    } catch (const std::exception& e) {
      const std::string words = e.what();
      ++failed, of_experts += words.find("streamed experts") != std::string::npos;
      EXPECT_NE(words.find("failed (emulated)"), std::string::npos) << words;
    }
    EXPECT_FALSE(model->lost());
    fail(0, 0);
    ASSERT_TRUE(same_bytes(want, run_whole(*model, tokens))) << "behind upload " << upload;
  }
  EXPECT_GE(of_experts, checkpoint.moe_blocks().size());
  EXPECT_GT(failed, of_experts);  // tables of the step
}

// Experts that do not arrive whole while they change places: which ones the layer has is not known, so the model is lost, in words.
TEST_F(CudaStreaming, AMoveThatFailsLosesTheModel) {
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-w4a8-g32-pack");
  // The one that comes; with streamed experts the second copy of the one that goes, too.
  const std::pair<const char*, size_t> cases[] = {{"off", 1}, {"4", 1}, {"4", 2}};
  for (const auto& [stream, expert] : cases) {
    SCOPED_TRACE(std::string(stream) + " " + std::to_string(expert));
    ModelOptions o = hybrid(checkpoint, stream, true);
    o.balance.check_every = 1;
    const auto model = DecoderModel::load(checkpoint, o);
    const std::vector<int32_t> tokens = test::random_tokens(20, model->vocab(), 3);
    fail(0, expert);
    std::string words;
    for (int round = 0; round < 100 && words.empty(); ++round) try {
        run_whole(*model, tokens);
      } catch (const std::exception& e) {
        words = e.what();
      }
    EXPECT_NE(words.find("no memory for an expert (emulated)"), std::string::npos) << words;
    EXPECT_TRUE(model->lost());
    fail(0, 0);
  }
}

}  // namespace
}  // namespace moebius::cuda_streams_test
