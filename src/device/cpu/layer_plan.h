// SPDX-License-Identifier: Apache-2.0
// Plans the loading of layers before anything large is read: how each matrix is divided for the
// rank, the resulting problem, and the kernel (chosen by the oracle). Pure functions; the column
// groups of act-order, the only payload that planning needs, are passed as a function.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/load_options.h"
#include "device/module_problem.h"
#include "kernels/oracle.h"
#include "nn/moe.h"

namespace moebius {

class PackedStore;

// Options of loading on the CPU.
struct LayerOptions : LayerLoadOptions {
  ThreadPool* pool = nullptr;
  Cpu cpu = host_cpu();
  PackedStore* packed = nullptr;  // cache of packed weights (packed_store.h); null: none
  // Holds the experts of models that do not fit memory; null: layers hold their own.
  std::shared_ptr<ExpertStore> experts = nullptr;
};

// Returns the kernel for a problem. Throws Error that names the module.
const Kernel& kernel_for(const Problem& problem, const LayerOptions& options,
                         std::string_view module);

// Returns the group of each column of an act-order module, [K].
using ColumnGroups = FunctionRef<std::vector<int32_t>(const Module&)>;

// Says how one matrix is loaded on this rank.
struct ModulePlan {
  const Module* module = nullptr;
  Cut cut = Cut::kWhole;
  uint64_t begin = 0, end = 0;  // range of its outputs or inputs that this rank has
  bool with_bias = true;        // false: another of the ranks whose outputs are added adds the bias
  ProjectionPlan projection;
};
// Plans a module. Throws Error that names the module if this rank cannot run it.
ModulePlan plan_module(const Module& module, const LayerOptions& options, ColumnGroups groups);
// Plans a module that is cut as `cut` says.
ModulePlan plan_module(const Module& module, Cut cut, const LayerOptions& options,
                       ColumnGroups groups);
// Plans some outputs of a module; {0, 0}: all. Takes the kernel of the whole matrix, so that
// outputs have the same bytes as there.
ModulePlan plan_outputs(const Module& module, Range outputs, const LayerOptions& options,
                        ColumnGroups groups);

// Plans of gate (whose module is null if the activation is not gated), up and down.
using ExpertModules = std::array<ModulePlan, 3>;
ExpertModules plan_expert(const std::array<const Module*, 3>& modules, const LayerOptions& options,
                          ColumnGroups groups);
ExpertPlan projections_of(const ExpertModules& expert);

struct MoeBlockPlan {
  MoePlan layer;
  std::vector<ExpertModules> experts;  // experts of this rank
  std::optional<ExpertModules> shared;
  // Filled if experts may move between ranks: plans of all experts, and for each the index of the
  // layer's plan.
  std::vector<ExpertModules> all;
  std::vector<uint32_t> all_plans;
};
MoeBlockPlan plan_moe(const MoeBlock& block, const LayerOptions& options, MoePart part,
                      ColumnGroups groups);

}  // namespace moebius
