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
#include "kernels/oracle.h"
#include "nn/moe.h"

namespace moebius {

class PackedStore;

// Options of loading on the CPU.
struct LayerOptions : LoadOptions {
  ThreadPool* pool = nullptr;
  Cpu cpu = host_cpu();
  PackedStore* packed = nullptr;  // packed weights of an earlier start (packed_store.h); null: none
};

// Returns how the input of a module is quantized; unquantized if its static scale is uncalibrated.
// A request for int8 rows is granted only if every architecture has fast kernels for the resulting
// problem, so that a folder gives the same results on all of them.
ActSpec act_spec_of(const Module& module, const ActRequest& request);
// Returns what became of a request for int8 rows: that it is granted, or why the module stays as
// declared; "" if there was no request or it does not concern the module.
std::string request_answer(const Module& module, const ActRequest& request);
// Returns the numerics class of the module's product: the kernel's, or approximate if a request was
// granted.
Numerics numerics_of(const Module& module, const Problem& problem, const Kernel& kernel);
// Throws Error if the policy forbids the request.
void check_request(const Policy& policy, const ActRequest& request);
// Returns the kernel's problem for a module, from file headers alone.
Problem problem_of(const Module& module, const ActRequest& request, XType x_type);
// Returns the kernel for a problem. Throws Error that names the module.
const Kernel& kernel_for(const Problem& problem, const LayerOptions& options,
                         std::string_view module);

// Returns the group of each column of an act-order module, [K].
using ColumnGroups = FunctionRef<std::vector<int32_t>(const Module&)>;

// Plan of one matrix on this rank.
struct ModulePlan {
  const Module* module = nullptr;
  Cut cut = Cut::kWhole;
  uint64_t begin = 0, end = 0;  // its outputs or inputs on this rank
  bool with_bias = true;        // false on all but one of the ranks whose outputs are added
  ProjectionPlan projection;
};
// Plans a module. Throws Error that names the module if this rank cannot run it.
ModulePlan plan_module(const Module& module, const LayerOptions& options, ColumnGroups groups);
// Plans a module with the given cut.
ModulePlan plan_module(const Module& module, Cut cut, const LayerOptions& options,
                       ColumnGroups groups);
// Plans some outputs of a module; {0, 0}: all. The kernel is that of the whole matrix, so that
// outputs have the same bytes as there.
ModulePlan plan_outputs(const Module& module, Range outputs, const LayerOptions& options,
                        ColumnGroups groups);

// gate (its module is null if not gated), up, down
using ExpertModules = std::array<ModulePlan, 3>;
ExpertModules plan_expert(const std::array<const Module*, 3>& modules, const LayerOptions& options,
                          ColumnGroups groups);
ExpertPlan projections_of(const ExpertModules& expert);

struct MoeBlockPlan {
  MoePlan layer;
  std::vector<ExpertModules> experts;  // local experts
  std::optional<ExpertModules> shared;
  // Set if experts may move between ranks: all experts, and the index of the layer's plan for each.
  std::vector<ExpertModules> all;
  std::vector<uint32_t> all_plans;
};
MoeBlockPlan plan_moe(const MoeBlock& block, const LayerOptions& options, MoePart part,
                      ColumnGroups groups);

// Memory of a module on this CPU, in bytes: its packed weights; its token table, if rows cannot be
// read from the packed weights; and the table that the first rank holds in addition if ranks divide
// a tied one by outputs. Throws Error if no kernel accepts the module.
struct ModuleMemory {
  uint64_t packed = 0, table = 0, table_of_cut = 0;
};
ModuleMemory module_memory(const Checkpoint& checkpoint, const Module& module, const Policy& policy,
                           const ActRequest& act, XType type);

}  // namespace moebius
