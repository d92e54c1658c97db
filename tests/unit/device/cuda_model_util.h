// SPDX-License-Identifier: Apache-2.0
// Models on the emulated CUDA plugin (tests/gpu/emulated_plugin.cpp), run piece by piece.
#pragma once
#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/run/decoder.h"
#include "runtime/thread_pool.h"

namespace moebius::test {

const CudaModule& emulated();
ModelOptions emulated_options(ThreadPool& pool, const char* placement, XType type = XType::kF32);
// The plan of a model for this process, by ranks that are threads; fitting_plan: throws Error where memory is short.
ModelPlan plan_here(const Checkpoint& checkpoint, const ModelOptions& options,
                    const RankSplit& split = {});
ModelPlan fitting_plan(const Checkpoint& checkpoint, const ModelOptions& options,
                       const RankSplit& split = {});
// Where --experts auto puts experts.
DevicePlacement place_experts(const Checkpoint& checkpoint, const ModelOptions& options);
// A third of the experts of each layer, others in every layer.
decltype(DevicePlacement::divided) third_of_experts(const Checkpoint& checkpoint);
Checkpoint golden_folder(const std::string& name);
std::vector<int32_t> random_tokens(size_t n, size_t vocab, unsigned seed = 7);
// Logits of all tokens of one sequence, in pieces that end at `ends`; in one.
std::vector<float> run_pieces(DecoderModel& model, std::span<const int32_t> tokens,
                              std::span<const size_t> ends);
std::vector<float> run_whole(DecoderModel& model, std::span<const int32_t> tokens);

// Tests of such models; skipped where the plugin is not.
class EmulatedModels : public testing::Test {
 protected:
  explicit EmulatedModels(size_t threads) : pool_(threads) {}
  void SetUp() override;
  ModelOptions options(const char* placement = "cuda", XType type = XType::kF32) {
    return emulated_options(pool_, placement, type);
  }
  ThreadPool pool_;
};

}  // namespace moebius::test
