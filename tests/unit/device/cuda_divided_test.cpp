// SPDX-License-Identifier: Apache-2.0
// Layers whose experts lie on a CUDA device and on the CPU: placed by their loads, with the bytes of one device wherever they lie, and
// changing places while a model runs. The device is the emulated plugin (tests/gpu/emulated_plugin.cpp).
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "base/file.h"
#include "checkpoint/checkpoint.h"
#include "device/cuda/cuda_device.h"
#include "model/plan/gpu_memory.h"
#include "model/run/decoder.h"
#include "model/run/expert_places.h"
#include "unit/device/cuda_model_util.h"
#include "unit/device/cuda_util.h"
#include "unit/test_util.h"

namespace moebius::cuda_divided_test {
namespace {

using test::emulated, test::run_pieces, test::run_whole;

size_t experts_moved() {  // calls that changed places
  void* library = ::dlopen(test::emulated_plugin().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto count = reinterpret_cast<size_t (*)()>(::dlsym(library, "moebius_emulated_moves"));
  ::dlclose(library);
  return count();
}

class CudaDivided : public test::EmulatedModels {
 protected:
  CudaDivided() : EmulatedModels(2) {}
  ModelOptions divided(const Checkpoint& checkpoint, XType type = XType::kF32) {
    ModelOptions o = options("cuda", type);
    o.placement.divided = test::third_of_experts(checkpoint);
    return o;
  }
};

bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Integer schemes: the bytes of one device, with biases, groups of experts and shared experts among them, and rows of 16 bits.
TEST_F(CudaDivided, IntegerExpertsHaveTheBytesOfOneDevice) {
  XType type = XType::kF32;
  for (const char* name :
       {"qwen3moe-w4a8-g32-pack", "gptoss-w8a8", "deepseekv3-w4a8-g32", "granitemoeshared-w8a8"}) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = test::golden_folder(name);
    const auto whole = DecoderModel::load(checkpoint, options("cuda", type)),
               both = DecoderModel::load(checkpoint, divided(checkpoint, type));
    const std::vector<int32_t> tokens = test::random_tokens(40, whole->vocab());
    std::vector<size_t> ends = {24};
    for (size_t i = 25; i <= tokens.size(); ++i) ends.push_back(i);  // graphs of decode steps
    const std::vector<float> want = run_whole(*whole, tokens);
    EXPECT_TRUE(same_bytes(want, run_whole(*both, tokens)));
    EXPECT_TRUE(same_bytes(want, run_pieces(*both, tokens, ends)));
    type = type == XType::kF32 ? XType::kBf16 : XType::kF32;
  }
}

// Shared experts, biases, identity experts, groups of a router: within the class, and rows do not see each other.
TEST_F(CudaDivided, EveryKindOfLayer) {
  for (const char* name :
       {"qwen3moe-dense", "gptoss-dense", "deepseekv3-dense", "longcatflash-dense",
        "qwen2moe-dense", "llama4-dense", "gemma4-dense"}) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = test::golden_folder(name);
    const auto cpu = DecoderModel::load(checkpoint, options("cpu")),
               both = DecoderModel::load(checkpoint, divided(checkpoint));
    const std::vector<int32_t> tokens = test::random_tokens(12, cpu->vocab());
    const std::vector<float> want = run_whole(*cpu, tokens), got = run_whole(*both, tokens);
    ASSERT_EQ(want.size(), got.size());
    float most = 0, largest = 0;
    for (size_t i = 0; i < want.size(); ++i)
      most = std::max(most, std::abs(want[i] - got[i])),
      largest = std::max(largest, std::abs(want[i]));
    EXPECT_LT(most, 1e-4f * largest);
    const size_t ends[] = {3, 11, 12};
    EXPECT_TRUE(same_bytes(got, run_pieces(*both, tokens, ends)));
  }
}

// --- experts that move ---

TEST(ExpertPlaces, BusyExpertsTakeThePlacesOfIdleOnes) {
  const std::vector<uint32_t> places = {4, 2, 0, 1, 3, 5};  // 4 and 2 are on the device
  const std::vector<uint64_t> load = {100, 10, 90, 300, 5, 95};
  EXPECT_EQ(busier_places(places, 2, load, 8), (std::vector<uint32_t>{3, 2, 0, 1, 4, 5}));
  EXPECT_DOUBLE_EQ(share_of_load(places, 2, load), 95.0 / 600.0);
  // Few rows more are worth no move, nor is what is little of all rows.
  EXPECT_EQ(busier_places(places, 2, std::vector<uint64_t>{11, 11, 10, 10, 10, 11}, 8), places);
  EXPECT_EQ(busier_places(places, 2, std::vector<uint64_t>{30, 10, 9000, 1, 1000, 1}, 8), places);
  EXPECT_EQ(busier_places(places, 3, std::vector<uint64_t>{1, 90, 2, 80, 3, 70}, 2),
            (std::vector<uint32_t>{4, 3, 1, 0, 2, 5}));
  EXPECT_EQ(share_of_load(places, 2, std::vector<uint64_t>(6, 0)), 0.0);
}

TEST_F(CudaDivided, BusyExpertsMoveAndNoByteChanges) {
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-w4a8-g32-pack");
  const auto whole = DecoderModel::load(checkpoint, options());
  ModelOptions o = divided(checkpoint);
  o.balance.check_every = 2;
  const test::TempDir folder;
  o.loads_file = (folder.path() / "loads.json").string();
  const size_t before = experts_moved();
  {
    const auto model = DecoderModel::load(checkpoint, o);
    // Always the same few tokens: some experts get most rows.
    for (int round = 0; round < 40; ++round) {
      std::vector<int32_t> tokens = test::random_tokens(20, whole->vocab(), 3);
      tokens.back() = round;
      ASSERT_TRUE(same_bytes(run_whole(*whole, tokens), run_whole(*model, tokens)))
          << "after " << experts_moved() - before << " moves";
    }
  }
  EXPECT_GT(experts_moved(), before);
  // What was counted places them at the next start, with less left to do.
  const ExpertLoads loads = read_loads(o.loads_file);
  EXPECT_EQ(loads.size(), checkpoint.moe_blocks().size());
  const MoeBlock& block = checkpoint.moe_blocks()[0];
  const auto layer = static_cast<size_t>(block.layer);
  uint64_t rows = 0;
  for (const uint64_t n : loads.at(layer)) rows += n;
  EXPECT_EQ(rows, 40u * 20u * block.spec.router.top_k);
}

// Batches in flight on both queues while places change.
TEST_F(CudaDivided, BatchesInFlightWhileExpertsMove) {
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-w4a8-g32-pack");
  const auto whole = DecoderModel::load(checkpoint, options());
  ModelOptions o = divided(checkpoint);
  o.balance.check_every = 1;
  const auto model = DecoderModel::load(checkpoint, o);
  const size_t kinds = model->kv_kinds().size(), before = experts_moved();
  ASSERT_EQ(model->batches_in_flight(), 2u);
  for (int round = 0; round < 30; ++round) {
    const std::vector<int32_t> a = test::random_tokens(12, whole->vocab(), 3),
                               b = test::random_tokens(9, whole->vocab(), 4);
    const BlockTables first(kinds, {0}), second(kinds, {1});
    const BatchItem one{&first, 0, a, LogitsOf::kAll}, two{&second, 0, b, LogitsOf::kAll};
    const auto x = model->submit({&one, 1}), y = model->submit({&two, 1});
    StepOutput out;
    model->collect(x, out);
    ASSERT_TRUE(same_bytes(run_whole(*whole, a), out.logits));
    model->collect(y, out);
    ASSERT_TRUE(same_bytes(run_whole(*whole, b), out.logits));
  }
  EXPECT_GT(experts_moved(), before);
}

TEST_F(CudaDivided, ExpertsOfFloatSchemesStay) {
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-dense");
  const auto whole = DecoderModel::load(checkpoint, options("cuda", XType::kBf16));
  ModelOptions o = divided(checkpoint, XType::kBf16);
  o.balance.check_every = 1;
  const size_t before = experts_moved();
  const auto model = DecoderModel::load(checkpoint, o);
  const std::vector<int32_t> tokens = test::random_tokens(30, model->vocab(), 3);
  const std::vector<float> want = run_whole(*model, tokens);
  for (int round = 0; round < 12; ++round) EXPECT_TRUE(same_bytes(want, run_whole(*model, tokens)));
  // Some CPUs have exact kernels for them, which the emulated device has too: those may move.
  if (!same_bytes(run_whole(*whole, tokens), want)) {
    EXPECT_EQ(experts_moved(), before);
  }
}

// --- where they are placed ---

TEST_F(CudaDivided, ExpertsArePlacedByTheirLoads) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  ModelOptions o = options();
  o.gpu.item_bytes = 1;  // rows between the parts count, and these experts are small
  const test::TempDir folder;
  o.loads_file = (folder.path() / "loads.json").string();
  ExpertLoads loads;
  for (const MoeBlock& b : checkpoint.moe_blocks())
    for (size_t e = 0; e < b.experts.size(); ++e)  // the last ones are the busiest; layer 0 less so
      loads[static_cast<size_t>(b.layer)].push_back(b.layer == 0 ? 50 + e : 1 + 100 * e * e);
  save_loads(o.loads_file, loads);
  const GpuBytes all = gpu_bytes(checkpoint, o, cuda_target(emulated().facts));
  const size_t last = checkpoint.moe_blocks().size() - 1,
               n = checkpoint.moe_blocks()[last].experts.size();
  ASSERT_GT(last, 0u);
  EXPECT_EQ(all.divisible[last], n);
  // Room for all but half of the experts of a layer.
  o.gpu.memory = device_bytes(all) + divided_work(checkpoint, o.gpu) - n / 2 * all.each[last];
  o.placement = test::place_experts(checkpoint, o);
  ASSERT_FALSE(o.placement.divided.empty());
  size_t here = 0;
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    const auto layer = static_cast<size_t>(b.layer);
    const auto some = o.placement.divided.find(layer);
    if (some == o.placement.divided.end()) {
      here += b.experts.size();
      continue;
    }
    here += some->second.size();
    // None that stays away is busier than one that is there.
    uint64_t idlest = UINT64_MAX, busiest = 0;
    for (uint32_t e = 0; e < b.experts.size(); ++e) {
      const bool on = std::binary_search(some->second.begin(), some->second.end(), e);
      if (on)
        idlest = std::min(idlest, loads[layer][e]);
      else
        busiest = std::max(busiest, loads[layer][e]);
    }
    EXPECT_GE(idlest, busiest);
  }
  const PlacedExperts placed = placed_experts(checkpoint, o.placement, loads);
  EXPECT_EQ(placed.experts, here);
  EXPECT_GE(placed.experts, placed.all - n / 2 - 1);
  EXPECT_GT(placed.load, static_cast<double>(placed.experts) / static_cast<double>(placed.all));
  EXPECT_NE(describe(placed).find("of their rows"), std::string::npos);
  // It fits, it loads, and it gives the bytes of one device.
  EXPECT_LE(device_bytes(gpu_bytes(checkpoint, o, cuda_target(emulated().facts))), o.gpu.memory);
  EXPECT_GT(test::fitting_plan(checkpoint, o).ranks[0].left, 0u);
  const auto model = DecoderModel::load(checkpoint, o),
             whole = DecoderModel::load(checkpoint, options());
  const std::vector<int32_t> tokens = test::random_tokens(10, whole->vocab());
  EXPECT_TRUE(same_bytes(run_whole(*whole, tokens), run_whole(*model, tokens)));

  // A file that is not there yet: all layers alike. Without one: layer by layer.
  o.loads_file = (folder.path() / "not_there.json").string();
  o.placement = parse_placement("cuda");
  EXPECT_EQ(test::place_experts(checkpoint, o).divided.size(), std::min(n / 2 + 1, last + 1));
  o.loads_file.clear();
  const DevicePlacement plain = test::place_experts(checkpoint, o);
  EXPECT_EQ(plain.divided.size(), 1u);
  EXPECT_EQ(plain.divided.begin()->first, last);
}

}  // namespace
}  // namespace moebius::cuda_divided_test
