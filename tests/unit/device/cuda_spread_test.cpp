// SPDX-License-Identifier: Apache-2.0
// Experts that ranks spread over CUDA devices (--ep): the bytes of one process with one device for every scheme, kind of layer and number
// of ranks. The device is the emulated plugin (tests/gpu/emulated_plugin.cpp), the ranks are threads.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "base/error.h"
#include "device/cuda/cuda_module.h"
#include "model/plan/gpu_memory.h"
#include "model/ranks/ranked_model.h"
#include "unit/device/cuda_model_util.h"
#include "unit/device/cuda_util.h"
#include "unit/test_util.h"

namespace moebius::cuda_spread_test {
namespace {

using test::emulated, test::run_pieces, test::run_whole;

RankSplit spread(size_t ep, size_t pp = 1) { return {pp, 1, ep}; }

bool same_bytes(std::span<const float> a, std::span<const float> b) {
  return !a.empty() && a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

class CudaSpread : public test::EmulatedModels {
 protected:
  CudaSpread() : EmulatedModels(1) {}
  std::string refusal(const Checkpoint& checkpoint, const ModelOptions& o, const RankSplit& split) {
    try {
      test::fitting_plan(checkpoint, o, split);
      ThreadRankedModel ranked(checkpoint, o, split, {});
    } catch (const std::exception& e) {
      return e.what();
    }
    return "";
  }
};

// A prompt in one piece, of so many rows that ranks share the sums, and in pieces with steps of one token, which leave ranks without a row.
TEST_F(CudaSpread, EverySchemeHasTheBytesOfOneDevice) {
  const std::pair<const char*, std::vector<size_t>> folders[] = {
      {"qwen3moe-w4a8-g32-pack", {2, 3, 4}},
      {"qwen3moe-nvfp4a16", {2}},
      {"qwen3moe-fp8-block", {2}},
      {"qwen3moe-mxfp4", {3}},
      {"qwen3moe-dense", {2, 4}},
      {"mixtral-w4a16-actorder-group", {3}},
  };
  XType type = XType::kBf16;
  for (const auto& [name, counts] : folders) {
    const Checkpoint checkpoint = test::golden_folder(name);
    const auto one = DecoderModel::load(checkpoint, options("cuda", type));
    const std::vector<int32_t> tokens = test::random_tokens(76, one->vocab());
    const size_t ends[] = {64, 73, 74, 75, 76};
    const std::vector<float> want = run_whole(*one, tokens);
    for (const size_t ranks : counts) {
      SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
      ThreadRankedModel ranked(checkpoint, options("cuda", type), spread(ranks), {});
      EXPECT_TRUE(same_bytes(want, run_whole(ranked.model(), tokens)));
      EXPECT_TRUE(same_bytes(want, run_pieces(ranked.model(), tokens, ends)));
    }
    type = type == XType::kF32 ? XType::kBf16 : XType::kF32;
  }
}

// Shared experts, with a gate, beside an MLP, biases, identity experts, groups of a router, weights on the input, dense layers before; parts that
// the device leaves to the CPU, where all ranks repeat them (recurrent layers), or ranks spread experts as CPUs do (a table of tokens).
TEST_F(CudaSpread, EveryKindOfLayer) {
  size_t ranks = 2;
  for (const char* name : {"deepseekv3-w4a8-g32", "qwen2moe-w4a16-g32", "gemma4-fp8-dynamic",
                           "gptoss-w8a8", "longcatflash-dense", "llama4-fp8-dynamic",
                           "granitemoeshared-w8a8", "kimilinear-w4a16-g32", "deepseekv4-dense"}) {
    SCOPED_TRACE(std::string(name) + " on " + std::to_string(ranks));
    const Checkpoint checkpoint = test::golden_folder(name);
    const auto one = DecoderModel::load(checkpoint, options());
    ThreadRankedModel ranked(checkpoint, options(), spread(ranks), {});
    const std::vector<int32_t> tokens = test::random_tokens(70, one->vocab());
    const size_t ends[] = {65, 68, 69, 70};
    EXPECT_TRUE(same_bytes(run_whole(*one, tokens), run_pieces(ranked.model(), tokens, ends)));
    ranks = ranks == 4 ? 2 : ranks + 1;
  }
}

// Sequences together in a step, on stages of ranks that spread experts, and with the experts on the CPUs.
TEST_F(CudaSpread, BatchesStagesAndExpertsOnCpus) {
  const Checkpoint checkpoint = test::golden_folder("granitemoeshared-w8a8");
  const auto batch = [&](DecoderModel& model) {
    std::vector<SequenceState> states;
    std::vector<std::vector<int32_t>> tokens;
    for (unsigned i = 0; i < 4; ++i) {
      states.push_back(model.new_sequence());
      tokens.push_back(test::random_tokens(5 + 9 * i, model.vocab(), i));
    }
    std::vector<float> all, some;
    for (int step = 0; step < 3; ++step) {
      std::vector<StepItem> items;
      for (size_t i = 0; i < states.size(); ++i)
        items.push_back(
            {&states[i], std::span(tokens[i]).first(step == 0 ? tokens[i].size() : 1), step == 0});
      model.forward(items, some);
      all.insert(all.end(), some.begin(), some.end());
    }
    return all;
  };
  const std::vector<float> want = batch(*DecoderModel::load(checkpoint, options()));
  for (const RankSplit& split : {spread(2), spread(2, 2)}) {
    SCOPED_TRACE(describe(split));
    ThreadRankedModel ranked(checkpoint, options(), split, {});
    EXPECT_TRUE(same_bytes(want, batch(ranked.model())));
  }
  ThreadRankedModel beside(checkpoint, options("cuda,experts=cpu"), spread(3), {});
  EXPECT_TRUE(same_bytes(batch(*DecoderModel::load(checkpoint, options("cuda,experts=cpu"))),
                         batch(beside.model())));
}

TEST_F(CudaSpread, RowsOfExpertsAreCounted) {
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-dense");
  const test::TempDir folder;
  ModelOptions o = options();
  o.loads_file = (folder.path() / "loads.json").string();
  {
    ThreadRankedModel ranked(checkpoint, o, spread(2), {});
    run_whole(ranked.model(), test::random_tokens(21, ranked.model().vocab()));
  }
  const ExpertLoads loads = read_loads(o.loads_file);
  ASSERT_EQ(loads.size(), checkpoint.moe_blocks().size());
  for (const auto& [layer, rows] : loads) {
    uint64_t all = 0;
    for (const uint64_t n : rows) all += n;
    EXPECT_EQ(all, 21u * checkpoint.moe_blocks()[0].spec.router.top_k);
  }
}

size_t experts_moved() {  // calls that changed places
  void* library = ::dlopen(test::emulated_plugin().c_str(), RTLD_NOW | RTLD_NOLOAD);
  const auto count = reinterpret_cast<size_t (*)()>(::dlsym(library, "moebius_emulated_moves"));
  ::dlclose(library);
  return count();
}

// Busy experts have copies on other ranks (--spare); no byte depends on which one serves a token. Experts of exact schemes move while the model
// runs, others have their copies where they were loaded.
TEST_F(CudaSpread, CopiesOfBusyExperts) {
  for (const char* name : {"deepseekv3-w4a8-g32", "deepseekv3-dense"}) {
    SCOPED_TRACE(name);
    const bool exact = std::string(name) != "deepseekv3-dense";
    const XType type = exact ? XType::kF32 : XType::kBf16;
    const Checkpoint checkpoint = test::golden_folder(name);
    const auto one = DecoderModel::load(checkpoint, options("cuda", type));
    ModelOptions o = options("cuda", type);
    o.balance.check_every = 2, o.balance.threshold = 1.01;
    const test::TempDir folder;
    o.loads_file = (folder.path() / "loads.json").string();
    ExpertLoads loads;
    for (const MoeBlock& b : checkpoint.moe_blocks())
      for (size_t e = 0; e < b.experts.size(); ++e)
        loads[static_cast<size_t>(b.layer)].push_back(e == 5 ? 900 : 10 * e);
    save_loads(o.loads_file, loads);
    const size_t before = experts_moved();
    {
      ThreadRankedModel ranked(checkpoint, o, {1, 1, 3, false, 4}, {});
      // Until some have moved, and a little longer: they are read beside the steps, when there is time.
      int left = exact ? 60 : 4;
      for (int round = 0; left > 0; ++round, --left) {
        std::vector<int32_t> tokens = test::random_tokens(70, one->vocab(), 3);
        tokens.back() = round % 32;
        const size_t ends[] = {66, 69, 70};
        ASSERT_TRUE(same_bytes(run_whole(*one, tokens), run_pieces(ranked.model(), tokens, ends)))
            << "round " << round << ", after " << experts_moved() - before << " moves";
        if (experts_moved() > before) left = std::min(left, 4);
      }
    }
    if (exact) {
      EXPECT_GT(experts_moved(), before);
    }
  }
}

// --- memory, and what cannot be ---

TEST_F(CudaSpread, EachRankHasItsShare) {
  const Checkpoint checkpoint = test::golden_folder("deepseekv3-w4a8-g32");
  ModelOptions o = options();
  o.placement = test::plan_here(checkpoint, o).ranks[0].placement;
  const GpuTarget target = cuda_target(emulated().facts);
  const GpuBytes whole = gpu_bytes(checkpoint, o, target);
  std::vector<GpuBytes> each;
  uint64_t routed = 0, most = 0, least = UINT64_MAX;
  for (const GpuShare& share : gpu_shares(checkpoint, spread(4))) {
    each.push_back(gpu_bytes(checkpoint, o, target, share));
    const GpuBytes& need = each.back();
    EXPECT_LT(need.experts, whole.experts);
    EXPECT_EQ(need.kv, whole.kv);  // attention is everybody's
    EXPECT_GT(need.work, whole.work);
    most = std::max(most, device_bytes(need)), least = std::min(least, device_bytes(need));
    routed += whole.experts - need.experts;
  }
  // Of four ranks, each lacks three quarters of the routed experts; what is not routed all have.
  uint64_t experts = 0;
  for (size_t i = 0; i < whole.each.size(); ++i) experts += whole.divisible[i] * whole.each[i];
  EXPECT_EQ(routed, 3 * experts);
  // A place more on each rank is an expert more of each layer.
  GpuShare more = gpu_shares(checkpoint, {1, 1, 4, false, 4})[1];
  EXPECT_EQ(more.spare, 4u);
  EXPECT_EQ(gpu_bytes(checkpoint, o, target, more).experts - each[1].experts, experts / 8);
  // Token table and logits are the leader's.
  EXPECT_EQ(each[1].weights, each[3].weights);
  EXPECT_GT(each[0].weights, each[1].weights);

  // What was planned is what is loaded: room for the fullest rank and not a byte less.
  o.gpu.memory = most;
  EXPECT_GT(test::fitting_plan(checkpoint, o, spread(4)).ranks[0].left, 0u);
  o.gpu.memory = most - 1;
  const std::string words = refusal(checkpoint, o, spread(4));
  EXPECT_NE(words.find("rank 0 of 4 needs"), std::string::npos) << words;
  EXPECT_NE(words.find("may be used (--gpu-memory)"), std::string::npos) << words;
  o.gpu.memory = least - 1;
  EXPECT_NE(refusal(checkpoint, o, spread(4)), "");

  const uint64_t all = DecoderModel::load(checkpoint, options())->loaded_bytes();
  std::mutex mutex;
  std::vector<std::string> lines;
  ThreadRankedModel ranked(checkpoint, options(), spread(4), [&](const std::string& line) {
    const std::lock_guard lock(mutex);
    lines.push_back(line);
  });
  EXPECT_EQ(lines.size(), 4u);
  EXPECT_LT(ranked.model().loaded_bytes(), all);
}

TEST_F(CudaSpread, WhatCannotBeIsRefusedInWords) {
  const Checkpoint checkpoint = test::golden_folder("qwen3moe-dense");
  const auto says = [&](const ModelOptions& o, const RankSplit& split, const char* words) {
    const std::string got = refusal(checkpoint, o, split);
    EXPECT_NE(got.find(words), std::string::npos) << got;
  };
  says(options(), {1, 2, 1},
       "with GPUs every rank has whole ones: --pp 2, or whole experts: --ep 2");
  says(options(), {1, 2, 2}, "cut layers, which CPUs do");
  says(options(), spread(5), "4 experts on 5 ranks");
  ModelOptions o = options();
  o.gpu.fit_experts = true;
  says(o, spread(2), "--experts auto is for one process or --pp");
}

}  // namespace
}  // namespace moebius::cuda_spread_test
