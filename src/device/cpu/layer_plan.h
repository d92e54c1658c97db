// SPDX-License-Identifier: Apache-2.0
// What loading will do, decided before anything large is read: how each matrix is cut for the rank,
// what problem that leaves, which kernel runs it (the oracle). Pure: the one thing planning needs
// from a payload, the column groups of act-order, comes through an argument.
#pragma once
#include <array>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "device/load_options.h"
#include "kernels/oracle.h"
#include "nn/moe.h"

namespace moebius {

class PackedStore;

// How the CPU loads.
struct LayerOptions : LoadOptions {
  ThreadPool* pool = nullptr;
  Cpu cpu = host_cpu();
  PackedStore* packed = nullptr;  // what was packed before (packed_store.h); null: nothing
};

// How the input of a module is quantized (nothing when its static scale is uncalibrated). A request
// for int8 rows is granted where every architecture has fast kernels for the integer problem it
// makes, so that a folder means the same on all of them; else the input stays as declared.
ActSpec act_spec_of(const Module& module, const ActRequest& request);
// What became of a request for int8 rows: "" if there was none or it does not concern the module,
// else that it is granted, or why the module stays as declared.
std::string request_answer(const Module& module, const ActRequest& request);
// The class of the module's product: of the kernel, or approximate where a request was granted.
Numerics numerics_of(const Module& module, const Problem& problem, const Kernel& kernel);
// Throws Error where the policy forbids what is requested.
void check_request(const Policy& policy, const ActRequest& request);
// What a kernel would be asked, from the headers alone.
Problem problem_of(const Module& module, const ActRequest& request, XType x_type);
// The kernel for a problem; throws Error naming the module.
const Kernel& kernel_for(const Problem& problem, const LayerOptions& options,
                         std::string_view module);

// The group of every column of an act-order module, [K].
using ColumnGroups = FunctionRef<std::vector<int32_t>(const Module&)>;

// One matrix of a layer on this rank.
struct ModulePlan {
  const Module* module = nullptr;
  Cut cut = Cut::kWhole;
  uint64_t begin = 0, end = 0;  // its outputs or inputs on this rank
  bool with_bias = true;        // ranks that add their outputs add the bias once
  ProjectionPlan projection;
};
// Throws Error for what this rank cannot run, naming the module.
ModulePlan plan_module(const Module& module, const LayerOptions& options, ColumnGroups groups);
// The same with the cut of the caller's choice.
ModulePlan plan_module(const Module& module, Cut cut, const LayerOptions& options,
                       ColumnGroups groups);
// Some outputs of a module; `outputs` {0, 0}: all. The kernel is the one of the whole matrix, so that
// every output has the bytes it has there.
ModulePlan plan_outputs(const Module& module, Range outputs, const LayerOptions& options,
                        ColumnGroups groups);

using ExpertModules = std::array<ModulePlan, 3>;  // gate (module null when not gated), up, down
ExpertModules plan_expert(const std::array<const Module*, 3>& modules, const LayerOptions& options,
                          ColumnGroups groups);
ExpertPlan projections_of(const ExpertModules& expert);

struct MoeBlockPlan {
  MoePlan layer;
  std::vector<ExpertModules> experts;  // local ones
  std::optional<ExpertModules> shared;
  // Where experts may move between ranks: all of them, and which of the layer's plans each has.
  std::vector<ExpertModules> all;
  std::vector<uint32_t> all_plans;
};
MoeBlockPlan plan_moe(const MoeBlock& block, const LayerOptions& options, MoePart part,
                      ColumnGroups groups);

// A module's weights as the kernels of this CPU hold them, and its token table where rows cannot be
// read from these; where ranks cut a tied one by outputs, the first holds the table too. Throws
// Error where no kernel takes it.
struct ModuleMemory {
  uint64_t packed = 0, table = 0, table_of_cut = 0;
};
ModuleMemory module_memory(const Checkpoint& checkpoint, const Module& module, const Policy& policy,
                           const ActRequest& act, XType type);

}  // namespace moebius
