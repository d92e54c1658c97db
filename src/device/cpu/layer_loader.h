// SPDX-License-Identifier: Apache-2.0
// Loads layers of a checkpoint for the CPU: plans (layer_plan.h), then reads, checks and packs.
// Experts are read once, by all threads in parallel; in addition to packed weights, a load holds
// one expert per thread.
#pragma once
#include <memory>
#include <vector>

#include "device/cpu/layer_plan.h"
#include "device/moe_block_layer.h"
#include "nn/linear.h"

namespace moebius {

// Loads one linear layer whose outputs are those of all modules in order. Throws Error.
std::unique_ptr<LinearLayer> load_linear(const Checkpoint& checkpoint,
                                         const std::vector<const Module*>& modules,
                                         const LayerOptions& options);

// Loads a linear layer as planned, with tensors of any store. Throws Error.
std::unique_ptr<LinearLayer> load_planned(const TensorStore& store,
                                          const std::vector<ModulePlan>& plans,
                                          const LayerOptions& options);

// Reads, checks and packs one expert of a layer. Throws Error.
void load_expert(MoeLayer& layer, size_t local, const TensorStore& store,
                 const ExpertModules& expert, ThreadPool* pool);

// Loads one linear layer from some outputs of each module.
std::unique_ptr<LinearLayer> load_outputs(const Checkpoint& checkpoint,
                                          const std::vector<ModuleOutputs>& modules,
                                          const LayerOptions& options);

MoeBlockLayer load_moe(const Checkpoint& checkpoint, const MoeBlock& block,
                       const LayerOptions& options, MoePart part = MoePart::kBlock);

// Returns the bytes that loading the block reads from files, for a progress bar.
uint64_t file_bytes(const MoeBlock& block, const Rank& rank = {});

}  // namespace moebius
