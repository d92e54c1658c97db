// SPDX-License-Identifier: Apache-2.0
// Counts the bytes of a model on a GPU and beside it, and chooses the experts that fit
// there: for plan_model(), and for forecasts of other machines.
#pragma once
#include <vector>

#include "device/gpu.h"
#include "model/plan/expert_loads.h"
#include "model/plan/model_plan.h"

namespace moebius {

// Holds the bytes of a model on its GPU and beside it.
struct GpuBytes {
  uint64_t weights = 0, experts = 0;  // experts: the part of `weights` that is experts
  uint64_t kv = 0;                    // bytes of keys and values of one sequence
  // Weights on the CPU, and the second copy of those that are streamed.
  uint64_t host = 0;
  uint64_t work = 0;             // what steps need beside these, and buffers of streamed weights
  std::vector<uint64_t> layers;  // [layer] bytes of experts, wherever they are
  // divisible: [layer] number of routed experts if they can be divided between two devices, else 0;
  // each: [layer] bytes of one.
  std::vector<size_t> divisible;
  std::vector<uint64_t> each;
  std::vector<PlannedModule> modules;  // of the share, each on its device
};
// Returns whether a module is placed with the experts of its layer: an expert, their router, or a
// dense MLP.
bool is_of_experts(const Module& module);
// Returns the share of a layer's rows that each expert gets; equal shares if no loads are known.
std::vector<double> shares_of(const ExpertLoads& loads, size_t layer, size_t experts);
// Returns all bytes on the device: weights, keys and values, and work.
uint64_t device_bytes(const GpuBytes& bytes);
// Returns the bytes of the rows between the parts of divided layers, for two batches in flight.
uint64_t divided_work(const Checkpoint& checkpoint, const GpuSettings& gpu);
// Describes a rank's share of a model: some layers, with token table and logits if the first is
// among them; with expert parallelism its own experts and everything else of the layers.
struct GpuShare {
  Range layers = {0, SIZE_MAX};
  size_t ep = 1, ep_rank = 0, spare = 0;
  bool has_ends() const { return layers.begin == 0 && ep_rank == 0; }
};
// Counts the bytes of a share. Parts of `wish.placement` that the device does not support must be
// on the CPU already (placement_plan.h).
GpuBytes gpu_bytes(const Checkpoint& checkpoint, const Wish& wish, const GpuTarget& target,
                   const GpuShare& share = {});

std::vector<GpuShare> gpu_shares(const Checkpoint& checkpoint, const RankSplit& split);
// Throws Error if ranks with GPUs cannot share a model in this way: they have whole layers
// (--pp) or spread experts (--ep).
void check_gpu_split(const Wish& wish);

// Returns a placement with the experts that fit into `allowed` beside everything else. Without
// loads, layers are filled one by one, and the last one is divided. With loads, routers, shared
// experts and the busiest expert of every layer come first, then the busiest experts of all layers;
// equally busy ones are taken evenly from the layers.
DevicePlacement experts_that_fit(const DevicePlacement& wanted, const GpuBytes& need,
                                 uint64_t allowed, const ExpertLoads* loads);
// Returns the placement of `wish` with as many of the share's experts on the device as fit into
// `allowed`, by the loads of wish.loads_file if it is named.
DevicePlacement fit_experts(const Checkpoint& checkpoint, const Wish& wish, const GpuTarget& target,
                            uint64_t allowed, const GpuShare& share = {});

// Summarizes where a placement puts experts.
struct PlacedExperts {
  // Layers whose experts are all on the device, and layers with some there.
  size_t layers = 0, divided = 0;
  size_t experts = 0, all = 0;  // routed experts on the device, and all routed experts
  // Share of the rows that the experts on the device get, averaged over layers.
  double load = 0;
};
PlacedExperts placed_experts(const Checkpoint& checkpoint, const DevicePlacement& placement,
                             const ExpertLoads& loads);
std::string describe(const PlacedExperts& placed);

}  // namespace moebius
