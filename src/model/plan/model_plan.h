// SPDX-License-Identifier: Apache-2.0
// Plans a model: decides everything that can be decided before a weight is read. A plan says which
// rank (a process or thread; several ranks may run one model together) runs which layers, which
// device runs which part of them, which experts are streamed (copied from host memory to a GPU for
// a step with many rows), how many bytes that takes in which memory, and why the model cannot run,
// if it cannot. Loading follows the plan; inspect, the server, ranks and the programming interfaces
// read it. No other code places parts or adds up bytes.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/parallel.h"
#include "device/module_use.h"
#include "model/arch/decoder_spec.h"
#include "model/plan/machine.h"
#include "model/plan/wish.h"

namespace moebius {

// States how many bytes a rank needs for one purpose in one memory. Made by plan_model().
struct Bytes {
  std::string_view what;  // purpose: one of the names below
  std::string where;      // memory: kHostMemory, or the name of a device ("cuda:1")
  uint64_t bytes = 0;
  double rate = 0;  // bytes per second at which the rank's machine reads them; 0: not known
};
inline constexpr std::string_view kHostMemory = "memory";
// Files from which experts are read when steps need them (nn/expert_store.h).
inline constexpr std::string_view kDisk = "disk";
// Packed weights without routed experts.
inline constexpr std::string_view kWeightBytes = "weights";
// Routed experts; on a GPU also their routers and shared experts, which are placed with them.
inline constexpr std::string_view kExpertBytes = "experts";
// The layer for multi-token prediction.
inline constexpr std::string_view kDraftBytes = "draft layer";
// Copy of the output projection that finds the best tokens (nn/shortlist.h).
inline constexpr std::string_view kShortlistBytes = "int8 copy of the output projection";
// Second copy of streamed experts in host memory, packed for the GPU's kernels.
inline constexpr std::string_view kStreamedBytes = "streamed experts";
// Keys and values of one sequence of Wish::context tokens; counted on a GPU only.
inline constexpr std::string_view kKvBytes = "KV cache";
// Activations and tables of a step, and buffers into which streamed experts are copied; counted on
// a GPU only.
inline constexpr std::string_view kWorkBytes = "work";

// Says which device runs a module of a rank's part, with which kernel, in how many bytes.
struct PlannedModule {
  const Module* module = nullptr;
  Cut cut = Cut::kWhole;                 // kOutputs: the rank has some of its outputs
  std::string device;                    // "cpu", "cuda:1"
  std::shared_ptr<const ModuleUse> use;  // what the device makes of the whole module
  uint64_t bytes = 0;                    // of the rank's part
};

// Says what one rank runs, on which devices, and what memory that takes.
struct RankPlan {
  Range layers;  // layers that the rank runs
  // modules that the rank holds, in the folder's order; empty for a GPU that is not known
  std::vector<PlannedModule> modules;
  // device of each part of each layer, and which experts of divided layers are on the GPU
  DevicePlacement placement;
  StreamedLayers streamed;   // layers whose experts are copied to the GPU for steps with many rows
  std::vector<Bytes> bytes;  // all memory that the rank needs; one entry per purpose and memory
  // Bytes that the KV cache may take in the memory (host or GPU) that holds its first layer. Set by
  // judge(); 0: not known.
  uint64_t left = 0;

  // Returns the bytes in one memory, for all purposes or for one.
  uint64_t sum(std::string_view where) const;
  uint64_t sum(std::string_view where, std::string_view what) const;
  // Returns the rate of a memory's entries; 0: not known.
  double rate(std::string_view where) const;
};

// Says what all ranks run, and whether that fits. The checkpoint must outlive it.
struct ModelPlan {
  const Checkpoint* checkpoint = nullptr;
  Wish wish;         // the caller's wish, with the placement that the plan decided
  DecoderSpec spec;  // architecture of the whole model
  // KV cache of all layers and the predictor; its list `devices` is empty, as no device lives on
  KvPlan kv;
  std::vector<RankPlan> ranks;
  // sentences for the log: what the wish left open and the plan decided
  std::vector<std::string> words;
  std::string refusal;  // why the model does not fit, in a sentence with both numbers; "": it fits
};

// Makes a plan from the checkpoint's headers and its small tensors that describe layouts; starts no
// thread and allocates no device memory. Throws Error if the model cannot run on these machines at
// all, for example because a module is not supported; a model that could run but is too large gets
// a `refusal` instead.
ModelPlan plan_model(const Checkpoint& checkpoint, const Wish& wish, const Cluster& cluster);
// Compares the plan's bytes with the memory of the cluster's machines; sets `refusal`, and `left`
// of each rank. plan_model() has done this for its own cluster; call it again when the real
// machines are known.
void judge(ModelPlan& plan, const Cluster& cluster);
// Throws Error of kind "memory" with the plan's refusal and the folder's name, if there is a
// refusal.
void require_fit(const ModelPlan& plan, const std::string& folder);

// Returns what a device would make of all modules that can run: for a folder without a plan because
// it cannot run, for a predictor, and for another device.
std::vector<PlannedModule> plan_modules(const Checkpoint& checkpoint, const ActRequest& act,
                                        XType type, const Device& device);
std::vector<PlannedModule> plan_modules_on_cpu(const Checkpoint& checkpoint, const Wish& wish);
// Returns the bytes of files that loading reads, with or without the predictor's.
uint64_t bytes_to_load(const Checkpoint& checkpoint, bool predictor);
// Returns the sum of the modules' bytes.
uint64_t sum_of(std::span<const PlannedModule> modules);
// Returns options for devices that plan what is wished; gpu: the GPU for which they do.
DeviceOptions planning_options(const Wish& wish, const GpuTarget* gpu = nullptr);

}  // namespace moebius
