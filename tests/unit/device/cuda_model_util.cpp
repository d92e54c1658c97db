// SPDX-License-Identifier: Apache-2.0
#include "unit/device/cuda_model_util.h"

#include <random>

#include "device/cuda/cuda_device.h"
#include "unit/device/cuda_util.h"
#include "unit/test_util.h"

namespace moebius::test {

const CudaModule& emulated() {
  static const CudaModule module = open_cuda_module(emulated_plugin());
  return module;
}

ModelOptions emulated_options(ThreadPool& pool, const char* placement, XType type) {
  ModelOptions options;
  options.pool = &pool, options.type = type;
  options.placement = parse_placement(placement), options.gpu.module = &emulated();
  return options;
}

void EmulatedModels::SetUp() {
  if (!has_emulated_plugin()) GTEST_SKIP() << "skipped: no emulated plugin in this bundle";
  ASSERT_TRUE(emulated().ready()) << emulated().words;
}

ModelPlan plan_here(const Checkpoint& checkpoint, const ModelOptions& options,
                    const RankSplit& split) {
  Wish wish = options;
  wish.split = split;
  return plan_model(checkpoint, wish, this_process(options.gpu, split.ranks()));
}

ModelPlan fitting_plan(const Checkpoint& checkpoint, const ModelOptions& options,
                       const RankSplit& split) {
  ModelPlan plan = plan_here(checkpoint, options, split);
  require_fit(plan, checkpoint.folder());
  return plan;
}

DevicePlacement place_experts(const Checkpoint& checkpoint, const ModelOptions& options) {
  ModelOptions o = options;
  o.gpu.fit_experts = true;
  return plan_here(checkpoint, o).ranks[0].placement;
}

decltype(DevicePlacement::divided) third_of_experts(const Checkpoint& checkpoint) {
  decltype(DevicePlacement::divided) out;
  for (const MoeBlock& b : checkpoint.moe_blocks()) {
    std::vector<uint32_t>& here = out[static_cast<size_t>(b.layer)];
    for (size_t e = 0; e < b.experts.size(); ++e)
      if ((e + static_cast<size_t>(b.layer)) % 3 == 0) here.push_back(static_cast<uint32_t>(e));
  }
  return out;
}

Checkpoint golden_folder(const std::string& name) {
  return Checkpoint::open((test_data_dir() / "golden" / name).string());
}

std::vector<int32_t> random_tokens(size_t n, size_t vocab, unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(rng() % vocab);
  return out;
}

std::vector<float> run_pieces(DecoderModel& model, std::span<const int32_t> tokens,
                              std::span<const size_t> ends) {
  SequenceState state = model.new_sequence();
  std::vector<float> all, some;
  size_t begin = 0;
  for (const size_t end : ends) {
    const StepItem item{&state, tokens.subspan(begin, end - begin), true};
    model.forward({&item, 1}, some);
    all.insert(all.end(), some.begin(), some.end());
    begin = end;
  }
  return all;
}

std::vector<float> run_whole(DecoderModel& model, std::span<const int32_t> tokens) {
  const size_t ends[] = {tokens.size()};
  return run_pieces(model, tokens, ends);
}

}  // namespace moebius::test
