// SPDX-License-Identifier: Apache-2.0
// A CUDA device behind the device waist, with a plugin that has the device's definitions and runs them on the
// host (tests/gpu/emulated_plugin.cpp): row operations with the bytes of the CPU, models within their class,
// equal bytes for a row alone and in any batch, and what does not fit or is not offered, in words.
#include "device/cuda/cuda_device.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <random>

#include "model/arch/arch.h"
#include "model/plan/gpu_memory.h"
#include "model/plan/placement_plan.h"
#include "model/run/decoder.h"
#include "unit/device/cuda_model_util.h"
#include "unit/device/cuda_util.h"
#include "unit/test_util.h"

namespace moebius::cuda_device_test {
namespace {

namespace fs = std::filesystem;

using test::emulated, test::emulated_options, test::run_pieces, test::run_whole;

// The largest difference, as a share of the largest number.
double apart(std::span<const float> want, std::span<const float> got) {
  if (want.size() != got.size()) return INFINITY;
  double most = 0, largest = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    const double d = std::abs(static_cast<double>(want[i]) - static_cast<double>(got[i]));
    if (!(d < INFINITY)) return INFINITY;
    most = std::max(most, d), largest = std::max(largest, std::abs(static_cast<double>(want[i])));
  }
  return most / largest;
}

bool equal_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class CudaDeviceModels : public testing::Test {
 protected:
  void SetUp() override {
    if (!test::has_emulated_plugin()) GTEST_SKIP() << "skipped: no emulated plugin in this bundle";
    ASSERT_TRUE(emulated().ready()) << emulated().words;
  }
};

// --- row operations ---

struct RowCase {
  const char* name;
  RowOp op;
};

std::vector<float> random_floats(std::mt19937& rng, size_t n, float scale = 2.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> out(n);
  for (float& v : out) v = normal(rng);
  return out;
}

constexpr size_t kCols = 96, kHeads = 4, kWidth = 24;

std::vector<RowCase> row_cases(std::mt19937& rng) {
  const RowView whole{0, 0, kCols}, other{1, 0, kCols}, heads{0, 0, kWidth, kHeads, kWidth},
      others{1, 0, kWidth, kHeads, kWidth};
  std::vector<RowCase> all;
  const auto add = [&](const char* name, RowOp op) { all.push_back({name, std::move(op)}); };
  add("copy", {RowOpKind::kCopy, heads, others});
  add("add", {RowOpKind::kAdd, whole, other});
  add("scale", {RowOpKind::kScale, whole, {}, 1.7f});
  add("clip", {RowOpKind::kClip, whole, {}, 1.5f});
  add("silu", {RowOpKind::kSilu, whole});
  add("sigmoid", {RowOpKind::kGateSigmoid, whole, other});
  add("sigmoid of heads", {RowOpKind::kGateSigmoid, whole, {1, 0, kHeads}});
  add("softplus", {RowOpKind::kGateSoftplus, whole, other});
  add("divide", {RowOpKind::kDivide, {0}, {}, 3.0f});
  add("cap", {RowOpKind::kCap, {0}, {}, 2.5f});
  for (const NormKind kind : {NormKind::kRms, NormKind::kRmsFused, NormKind::kRmsOnePlus,
                              NormKind::kRmsPlain, NormKind::kLayer}) {
    RowOp op{RowOpKind::kNorm, whole, other};
    op.norm = {kind, 1e-6f, random_floats(rng, kCols), random_floats(rng, kCols)};
    add("norm", op);
    op.y = heads, op.x = heads;
    op.norm.weight.resize(kWidth), op.norm.bias.resize(kWidth);
    add("norm of heads", op);
  }
  for (const size_t rope : {0u, 1u})
    for (const RowOpKind kind : {RowOpKind::kRotate, RowOpKind::kRotateBack}) {
      RowOp op{kind, heads};
      op.rope = rope;
      add("rotate", op);
    }
  for (const RowOpKind kind : {RowOpKind::kTemperature, RowOpKind::kLogGrowth, RowOpKind::kPower}) {
    RowOp op{kind, whole};
    op.temperature = {0.1f, 2.0f, 1.0f};
    add("by position", op);
  }
  RowOp bias{RowOpKind::kHeadBias, heads}, scale{RowOpKind::kHeadScale, heads};
  bias.values = random_floats(rng, kHeads), scale.values = random_floats(rng, 2 * kHeads);
  add("bias of heads", bias), add("scale of heads", scale);
  return all;
}

// Operands of three rows through one operation.
std::vector<float> run_op(Device& device, const RowOp& op, XType type, Step& step,
                          const std::vector<float>& y, const std::vector<float>& x) {
  const auto program = device.rows({op});
  device.begin(step);
  const RowSet rows[] = {device.rows(step, 0, kCols, type), device.rows(step, 1, kCols, type)};
  const std::vector<float>* from[] = {&y, &x};
  for (size_t i = 0; i < 2; ++i)
    device.on_host(step, {}, rows[i], [&](HostRows, HostRows to) {
      std::copy(from[i]->begin(), from[i]->end(), to.data.begin());
    });
  program->run(step, {rows[0], rows[1]});
  std::vector<float> out;
  device.on_host(step, rows[0], {},
                 [&](HostRows got, HostRows) { out.assign(got.data.begin(), got.data.end()); });
  device.wait(step);
  return out;
}

TEST_F(CudaDeviceModels, RowOperationsHaveTheBytesOfTheCpu) {
  ThreadPool pool(1);
  std::mt19937 rng(3);
  const std::vector<RowCase> cases = row_cases(rng);
  std::vector<RopeSpec> ropes(2);
  ropes[0].dims = kWidth, ropes[1].dims = 16, ropes[1].interleaved = true;
  ropes[1].scaling = RopeScaling::kDynamic, ropes[1].original_length = 8, ropes[1].factor = 2;
  for (const XType type : {XType::kF32, XType::kBf16, XType::kF16}) {
    DeviceOptions options;
    options.type = type, options.gpu.module = &emulated();
    CpuDevice cpu(&pool, host_cpu(), options);
    CudaDevice cuda("cuda", &pool, options);
    cpu.set_ropes(ropes), cuda.set_ropes(ropes);
    Step step;
    step.rows = 3, step.longest = 20;
    step.positions = {0, 5, 19}, step.lengths = {1, 6, 20}, step.tokens = {0, 0, 0};
    for (const RowCase& c : cases) {
      const bool unrounded = c.op.kind == RowOpKind::kDivide || c.op.kind == RowOpKind::kCap;
      if (unrounded && type != XType::kF32) continue;  // rows of logits are f32
      std::vector<float> y = random_floats(rng, 3 * kCols), x = random_floats(rng, 3 * kCols);
      round_to(type, y.data(), y.size()), round_to(type, x.data(), x.size());
      EXPECT_TRUE(
          equal_bytes(run_op(cpu, c.op, type, step, y, x), run_op(cuda, c.op, type, step, y, x)))
          << c.name << ", type " << static_cast<int>(type) << ", norm "
          << static_cast<int>(c.op.norm.kind);
    }
  }
}

// --- models ---

TEST_F(CudaDeviceModels, EveryFolderIsWithinItsClass) {
  ThreadPool pool(1);
  size_t folders = 0, seen = 0;
  for (const auto& entry : fs::directory_iterator(test::test_data_dir() / "golden")) {
    const std::string name = entry.path().filename().string();
    if (!fs::exists(entry.path() / "config.json") || seen++ % (2 * test::thinning()) != 0) continue;
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = Checkpoint::open(entry.path().string());
    std::unique_ptr<DecoderModel> cpu;
    try {
      cpu = DecoderModel::load(checkpoint, emulated_options(pool, "cpu"));
    } catch (const Error&) {
      continue;  // a folder of blocks
    }
    const std::vector<int32_t> tokens = test::random_tokens(10, cpu->vocab());
    const std::vector<float> want = run_whole(*cpu, tokens);
    const auto cuda = DecoderModel::load(checkpoint, emulated_options(pool, "cuda"));
    EXPECT_LT(apart(want, run_whole(*cuda, tokens)), 1e-4);
    ++folders;
  }
  EXPECT_GT(folders, 60u / test::thinning());
}

constexpr const char* kFolders[] = {"qwen3moe-dense", "qwen3moe-w4a8-g32-pack", "gptoss-dense",
                                    "deepseekv3-dense", "gemma4-dense"};

TEST_F(CudaDeviceModels, ARowHasTheSameBytesAloneAndInABatch) {
  ThreadPool pool(1);
  XType type = XType::kF32;
  for (const char* name : kFolders) {
    SCOPED_TRACE(name);
    type = type == XType::kF32 ? XType::kBf16 : XType::kF32;
    const auto model =
        DecoderModel::load(test::golden_folder(name), emulated_options(pool, "cuda", type));
    const std::vector<int32_t> a = test::random_tokens(140, model->vocab(), 1),
                               b = test::random_tokens(9, model->vocab(), 2);
    const std::vector<float> want_a = run_whole(*model, a), want_b = run_whole(*model, b);
    const size_t ends[] = {3, 130, 139, 140};
    EXPECT_TRUE(equal_bytes(want_a, run_pieces(*model, a, ends)));
    SequenceState first = model->new_sequence(), second = model->new_sequence();
    const StepItem items[] = {{&first, a, true}, {&second, b, true}};
    std::vector<float> both, want = want_a;
    model->forward(items, both);
    want.insert(want.end(), want_b.begin(), want_b.end());
    EXPECT_TRUE(equal_bytes(want, both));
  }
}

size_t graph_launches() {
  void* library = ::dlopen(test::emulated_plugin().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto count = reinterpret_cast<size_t (*)()>(::dlsym(library, "moebius_emulated_launches"));
  ::dlclose(library);
  return count();
}

// What a decode step gives to the device is launched again as a graph, also between copies of rows.
TEST_F(CudaDeviceModels, DecodeStepsAreGraphsWithTheSameBytes) {
  ThreadPool pool(2);
  for (const char* placement : {"cuda", "cuda,experts=cpu"})
    for (const char* name : {"qwen3moe-w4a8-g32-pack", "gemma4-dense"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, placement));
      const auto model =
          DecoderModel::load(test::golden_folder(name), emulated_options(pool, placement));
      const std::vector<int32_t> tokens = test::random_tokens(140, model->vocab(), 5);
      std::vector<size_t> ends = {120};
      for (size_t i = 121; i <= tokens.size(); ++i) ends.push_back(i);
      const std::vector<float> want = run_whole(*model, tokens);
      const size_t before = graph_launches();
      EXPECT_TRUE(equal_bytes(want, run_pieces(*model, tokens, ends)));
      EXPECT_GE(graph_launches() - before, 16u);
    }
}

// Steps with as many rows and tiles, of other numbers of sequences: each has its own graph.
TEST_F(CudaDeviceModels, StepsOfOtherSequencesAreOtherGraphs) {
  ThreadPool pool(2);
  const auto model = DecoderModel::load(test::golden_folder("qwen3moe-w4a8-g32-pack"),
                                        emulated_options(pool, "cuda", XType::kBf16));
  const std::vector<int32_t> tokens = test::random_tokens(12, model->vocab(), 5);
  for (int round = 0; round < 3; ++round)
    for (const std::vector<size_t>& sizes : {std::vector<size_t>{12}, {6, 6}, {1, 11}, {4, 4, 4}}) {
      std::vector<SequenceState> states;
      for (size_t i = 0; i < sizes.size(); ++i) states.push_back(model->new_sequence());
      std::vector<StepItem> items;
      std::vector<float> want, got;
      for (size_t i = 0; i < sizes.size(); ++i) {
        items.push_back({&states[i], std::span(tokens).first(sizes[i]), true});
        const std::vector<float> alone = run_whole(*model, items.back().tokens);
        want.insert(want.end(), alone.begin(), alone.end());
      }
      model->forward(items, got);
      EXPECT_TRUE(equal_bytes(want, got)) << sizes.size() << " sequences";
    }
}

// Two segments of keys, with sinks, and a window in every second layer: by one block of the device, and
// by several.
TEST_F(CudaDeviceModels, LongPromptsAgreeWithTheCpu) {
  ThreadPool pool(2);
  const Checkpoint checkpoint = test::golden_folder("gptoss-dense");
  const auto cpu = DecoderModel::load(checkpoint, emulated_options(pool, "cpu")),
             cuda = DecoderModel::load(checkpoint, emulated_options(pool, "cuda"));
  const std::vector<int32_t> tokens = test::random_tokens(1100, cpu->vocab());
  const size_t ends[] = {1090, 1095, 1100};
  const std::vector<float> want = run_pieces(*cpu, tokens, ends),
                           got = run_pieces(*cuda, tokens, ends);
  EXPECT_LT(apart(want, got), 1e-4);
  EXPECT_TRUE(equal_bytes(got, run_whole(*cuda, tokens)));
}

TEST_F(CudaDeviceModels, EveryTypeOfKeysAndValues) {
  ThreadPool pool(1);
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-dense");
  // Both devices sum in their own order: a key at the edge of two stored values may be either, so the
  // bound is some steps of the type.
  const std::pair<KvType, double> types[] = {{KvType::kF32, 1e-4},
                                             {KvType::kF16, 1e-3},
                                             {KvType::kBf16, 8e-3},
                                             {KvType::kInt8, 1e-2},
                                             {KvType::kFp8, 6e-2}};
  for (const auto& [kv, bound] : types) {
    ModelOptions on_cpu = emulated_options(pool, "cpu"), on_cuda = emulated_options(pool, "cuda");
    on_cpu.kv_type = on_cuda.kv_type = kv;
    const auto cpu = DecoderModel::load(checkpoint, on_cpu),
               cuda = DecoderModel::load(checkpoint, on_cuda);
    const std::vector<int32_t> tokens = test::random_tokens(150, cpu->vocab());
    EXPECT_LT(apart(run_whole(*cpu, tokens), run_whole(*cuda, tokens)), bound)
        << static_cast<int>(kv);
  }
}

TEST_F(CudaDeviceModels, AttentionOnTheDeviceAndExpertsOnTheCpu) {
  ThreadPool pool(2);
  for (const char* name : kFolders)
    for (const char* placement :
         {"cuda,experts=cpu", "cpu,experts=cuda", "cuda,experts=cpu:1-1,attention=cpu:0-0"}) {
      SCOPED_TRACE(fmt::format("{} {}", name, placement));
      const Checkpoint checkpoint = test::golden_folder(name);
      const auto cpu = DecoderModel::load(checkpoint, emulated_options(pool, "cpu")),
                 hybrid = DecoderModel::load(checkpoint, emulated_options(pool, placement));
      const std::vector<int32_t> tokens = test::random_tokens(12, cpu->vocab());
      EXPECT_LT(apart(run_whole(*cpu, tokens), run_whole(*hybrid, tokens)), 1e-4);
    }
}

// As an engine has them: blocks by number, a copy, a cut, and rows of experts counted.
TEST_F(CudaDeviceModels, BlocksOfAnyNumbers) {
  ThreadPool pool(1);
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-w4a8-g32-pack");
  const auto model = DecoderModel::load(checkpoint, emulated_options(pool, "cuda"));
  const std::vector<int32_t> tokens = test::random_tokens(200, model->vocab());
  const size_t kinds = model->kv_kinds().size();
  const BlockTables a(kinds, {7, 2}), b(kinds, {7, 5});
  StepOutput out;
  const auto through = [&](const BlockTables& tables, size_t position, size_t n) {
    const BatchItem item{&tables, position, std::span(tokens).subspan(position, n), LogitsOf::kAll};
    model->collect(model->submit({&item, 1}), out);
    return out.logits;
  };
  const std::vector<float> want = run_whole(*model, tokens);
  std::vector<float> got = through(a, 0, 150);
  size_t rows = 0;
  for (const uint32_t n : out.stats.expert_rows) rows += n;
  EXPECT_EQ(rows % 150, 0u);
  EXPECT_GT(rows, 0u);
  const std::vector<float> behind = through(a, 150, 50);
  got.insert(got.end(), behind.begin(), behind.end());
  EXPECT_TRUE(equal_bytes(want, got));
  for (size_t k = 0; k < kinds; ++k) model->copy_block(k, 2, 5, 22);
  EXPECT_TRUE(equal_bytes(behind, through(b, 150, 50)));
}

TEST(CudaDevice, WhatIsNotOfferedIsPlacedOnTheCpuInWords) {
  const auto words_of = [](const char* name) {
    const Checkpoint checkpoint = test::golden_folder(name);
    Wish wish;
    wish.placement = parse_placement("cuda");
    return fmt::format("{}", fmt::join(plan_model(checkpoint, wish, {}).words, "; "));
  };
  EXPECT_EQ(words_of("qwen3moe-dense"), "");
  EXPECT_NE(words_of("qwen3next-dense").find("on the CPU: a recurrent layer"), std::string::npos);
  EXPECT_NE(words_of("deepseekv32-dense").find("sparse attention"), std::string::npos);
  EXPECT_NE(words_of("deepseekv4-dense").find("experts by a table of tokens"), std::string::npos);
  for (const char* streams : {"glm5next-dense", "qwen4exp-dense"})
    EXPECT_NE(words_of(streams).find("on the CPU: rows of several streams"), std::string::npos);
}

TEST_F(CudaDeviceModels, TooLittleMemoryIsRefusedWithBothNumbers) {
  ThreadPool pool(1);
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-dense");
  ModelOptions options = emulated_options(pool, "cuda");
  const uint64_t left = test::fitting_plan(checkpoint, options).ranks[0].left;
  EXPECT_GT(left, 0u);
  options.gpu.memory = uint64_t{256} << 20;
  std::string words;
  try {
    test::fitting_plan(checkpoint, options);
  } catch (const Error& e) {
    words = e.what();
  }
  EXPECT_NE(words.find("of weights"), std::string::npos) << words;
  EXPECT_NE(words.find("268 MB may be used (--gpu-memory)"), std::string::npos) << words;
  EXPECT_NE(words.find("--experts cpu"), std::string::npos) << words;
}

TEST_F(CudaDeviceModels, ExpertsOfAsManyLayersAsFit) {
  ThreadPool pool(1);
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-dense");
  ModelOptions options = emulated_options(pool, "cuda");
  options.gpu.item_bytes = 1;  // rows between the parts count, and these experts are small
  const GpuBytes need = gpu_bytes(checkpoint, options, cuda_target(emulated().facts));
  EXPECT_EQ(test::place_experts(checkpoint, options).describe(), "cuda");
  options.gpu.memory = need.weights + need.kv + (uint64_t{256} << 20) - 1;
  const DevicePlacement placed = test::place_experts(checkpoint, options);
  const size_t last = need.layers.size() - 1;
  EXPECT_EQ(placed.divided.size(), 1u);
  const size_t left_out = divided_work(checkpoint, options.gpu) / need.each[last] + 1;
  EXPECT_EQ(placed.divided.at(last).size() + left_out, need.divisible[last]);
  EXPECT_EQ(placed.of(last).attention, "cuda");
  options.placement = placed;
  EXPECT_GT(test::fitting_plan(checkpoint, options).ranks[0].left, 0u);
  options.placement = parse_placement("cuda");
  options.gpu.memory -= need.layers[last];
  EXPECT_EQ(test::place_experts(checkpoint, options).of(last).experts, "cpu");
}

TEST(CudaDevice, NamesOfDevices) {
  EXPECT_TRUE(is_gpu_name("cuda") && is_gpu_name("cuda:0") && is_gpu_name("cuda:12"));
  EXPECT_FALSE(is_gpu_name("cuda:") || is_gpu_name("cuda:x") || is_gpu_name("cudas"));
  EXPECT_EQ(gpu_number("cuda:12"), 12);
  EXPECT_THROW(parse_placement("cuda:0,experts=cuda:1"), Error);
}

}  // namespace
}  // namespace moebius::cuda_device_test
