// SPDX-License-Identifier: Apache-2.0
// From modules of a checkpoint to layers that run: plan (layer_plan.h), then read, check and pack.
// Experts are read once, one by one by all threads; besides the packed weights a load holds one
// expert per thread.
#pragma once
#include <memory>
#include <vector>

#include "device/cpu/layer_plan.h"
#include "nn/linear.h"

namespace moebius {

// Several modules give one layer with their outputs side by side.
std::unique_ptr<LinearLayer> load_linear(const Checkpoint& checkpoint,
                                         const std::vector<const Module*>& modules,
                                         const LayerOptions& options);

// The same from plans, with the tensors of any store.
std::unique_ptr<LinearLayer> load_planned(const TensorStore& store,
                                          const std::vector<ModulePlan>& plans,
                                          const LayerOptions& options);

// Reads, checks and packs one expert of a layer.
void load_expert(MoeLayer& layer, size_t local, const TensorStore& store,
                 const ExpertModules& expert, ThreadPool* pool);

// The same for some outputs of each.
std::unique_ptr<LinearLayer> load_outputs(const Checkpoint& checkpoint,
                                          const std::vector<ModuleOutputs>& modules,
                                          const LayerOptions& options);

// Every expert of a block, on this rank or not, for a layer whose experts move between ranks. The
// checkpoint outlives it.
struct ExpertSource {
  std::shared_ptr<const TensorStore> store;
  std::vector<ExpertModules> experts;
  std::vector<uint32_t> plan_of;  // as MoeLayer::spare() counts
  // Reads, checks and packs; from any thread.
  void load(const MoeLayer& layer, MoeLayer::StagedExpert& to, size_t expert) const;
};

// A MoE block: the experts, and the linear that makes router logits (f32).
struct MoeBlockLayer {
  std::unique_ptr<MoeLayer> experts;
  std::unique_ptr<LinearLayer> router;
  std::unique_ptr<const ExpertSource> source = nullptr;  // where experts may move
};
MoeBlockLayer load_moe(const Checkpoint& checkpoint, const MoeBlock& block,
                       const LayerOptions& options, MoePart part = MoePart::kBlock);

// File bytes that loading reads, for a progress bar.
uint64_t file_bytes(const MoeBlock& block, const Rank& rank = {});

}  // namespace moebius
