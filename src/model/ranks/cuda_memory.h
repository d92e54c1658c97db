// SPDX-License-Identifier: Apache-2.0
// Whether a model fits its CUDA device, judged before anything is read, and which experts do.
#pragma once
#include <vector>

#include "device/cuda/cuda_choice.h"
#include "model/decoder.h"
#include "model/ranks.h"

namespace moebius {

// Bytes of a model on its CUDA device, and beside it.
struct CudaBytes {
  uint64_t weights = 0, experts = 0;  // experts: of the weights
  uint64_t kv = 0;                    // keys and values of one sequence
  uint64_t host = 0;             // weights on the CPU, and those that are streamed, a second time
  uint64_t work = 0;             // what steps need beside these, buffers of what is streamed
  std::vector<uint64_t> layers;  // experts of each layer, wherever they are
  // Of each layer: its routed experts where they can lie on two devices (else 0), and bytes of one.
  std::vector<size_t> divisible;
  std::vector<uint64_t> each;
};
// Whether a module is placed with the experts of its layer: theirs, their router's, a dense MLP's.
bool is_of_experts(const Module& module);
// The share of a layer's rows that each of its experts gets; equal ones where nothing is known.
std::vector<double> shares_of(const ExpertLoads& loads, size_t layer, size_t experts);
// All of it.
uint64_t device_bytes(const CudaBytes& bytes);
// Whether some experts of a block can be on the device and the others on the CPU.
bool can_divide(const MoeBlock& block);
// What rows between the parts of divided layers take, of two batches in flight.
uint64_t divided_work(const Checkpoint& checkpoint, const CudaSettings& cuda);
inline constexpr uint64_t kReservedBytes = uint64_t{1}
                                           << 30;  // of a device, for others and the driver
// What a rank has of a model: some layers, with token table and logits where the first is among them; of several ranks
// that spread experts its own, and all the rest of the layers.
struct CudaShare {
  Range layers = {0, SIZE_MAX};
  size_t ep = 1, ep_rank = 0, spare = 0;
  bool has_ends() const { return layers.begin == 0 && ep_rank == 0; }
};
CudaBytes cuda_bytes(const Checkpoint& checkpoint, const ModelOptions& options,
                     const CudaTarget& target, size_t context, const CudaShare& share = {});

// What a rank may have of its device, or of one that so many share.
uint64_t allowed_cuda_bytes(const CudaSettings& cuda, size_t shared = 1);
// Throws Error with both numbers where the device has too little memory; else the bytes that are left
// beside the weights where keys and values lie.
uint64_t check_cuda_memory(const Checkpoint& checkpoint, const ModelOptions& options,
                           const CudaShare& share = {});
// The same of ranks that are threads of this process and share its device; what is left for each.
uint64_t check_cuda_ranks(const Checkpoint& checkpoint, const ModelOptions& options,
                          const RankSplit& split);
std::vector<CudaShare> cuda_shares(const Checkpoint& checkpoint, const RankSplit& split);
// Bytes of weights that each rank has on the CPU beside its device.
std::vector<uint64_t> host_bytes_of_ranks(const Checkpoint& checkpoint, const RankSplit& split,
                                          const ModelOptions& options);
// Throws Error where ranks with CUDA devices cannot share a model so: they have whole layers (--pp) or spread experts
// (--ep).
void check_cuda_split(const ModelOptions& options, const RankSplit& split);

// The experts that fit into `allowed` beside all that is not experts. loads null: layer by layer, the last of
// them divided. Else routers, shared experts and the busiest expert of every layer first, then the
// busiest of all; equal ones of all layers alike.
DevicePlacement experts_that_fit(const DevicePlacement& wanted, const CudaBytes& need,
                                 uint64_t allowed, const ExpertLoads* loads);
// The placement with as many experts on the device as fit; by the loads of options.loads_file, where it is named.
DevicePlacement place_experts(const Checkpoint& checkpoint, const ModelOptions& options);
// The same for any device. loads null: layer by layer.
DevicePlacement fit_experts(const Checkpoint& checkpoint, const ModelOptions& options,
                            const CudaTarget& target, uint64_t allowed, size_t context,
                            const ExpertLoads* loads);

// Where the experts of a placement lie.
struct PlacedExperts {
  size_t layers = 0, divided = 0;  // with experts on the device: all of them, some of them
  size_t experts = 0, all = 0;     // routed ones on the device, of all
  double load = 0;                 // share of the rows that these get, a mean over layers
};
PlacedExperts placed_experts(const Checkpoint& checkpoint, const DevicePlacement& placement,
                             const ExpertLoads& loads);
std::string describe(const PlacedExperts& placed);

}  // namespace moebius
