// SPDX-License-Identifier: Apache-2.0
// Plans a model: decides everything that is decided before a weight is read. A plan says which rank
// runs which layers, which device runs which part of them, which experts are streamed, how many
// bytes that takes and where, and why the model cannot run, if it cannot. Loading follows the plan;
// inspect, the server, ranks and the programming interfaces read it. No other code places parts or
// adds up bytes.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/arch/decoder_spec.h"
#include "model/plan/machine.h"
#include "model/plan/wish.h"

namespace moebius {

// States how many bytes a rank needs for one purpose in one memory.
struct Bytes {
  std::string_view what;  // purpose: one of the names below
  std::string where;      // memory: kHostMemory, or the name of a device ("cuda:1")
  uint64_t bytes = 0;
};
inline constexpr std::string_view kHostMemory = "memory";
// Packed weights without routed experts.
inline constexpr std::string_view kWeightBytes = "weights";
// Routed experts; on a GPU also the modules that are placed with them.
inline constexpr std::string_view kExpertBytes = "experts";
// The host's second copy of streamed experts, in the GPU's form.
inline constexpr std::string_view kStreamedBytes = "streamed experts";
// Keys and values of one sequence of the planned length.
inline constexpr std::string_view kKvBytes = "KV cache";
// Rows and tables of steps, and buffers of streamed experts.
inline constexpr std::string_view kWorkBytes = "work";

// Says what one rank runs, on which devices, and what memory that takes.
struct RankPlan {
  Range layers;               // layers that the rank runs
  DevicePlacement placement;  // device of each part of a layer, and the experts of divided layers
  CudaStreamed streamed;      // layers whose experts are copied to the GPU for steps with many rows
  std::vector<Bytes> bytes;   // all memory that the rank needs
  // Bytes that the KV cache may take in the memory that holds its first layer; 0: not known.
  uint64_t left = 0;

  // Returns the bytes in one memory, for all purposes or for one.
  uint64_t sum(std::string_view where) const;
  uint64_t sum(std::string_view where, std::string_view what) const;
};

// Says what all ranks run, and whether that fits.
struct ModelPlan {
  Wish wish;         // the caller's wish, with the placement that the plan decided
  DecoderSpec spec;  // architecture of the whole model
  KvPlan kv;         // covers all layers and the predictor; its list of devices is empty
  std::vector<RankPlan> ranks;
  std::vector<std::string> words;  // sentences about what the wish left open and the plan decided
  std::string refusal;  // why the model does not fit, in a sentence with both numbers; "": it fits
};

// Makes a plan from headers and the small tensors that describe layouts; starts no thread and
// allocates no device memory. Throws Error for a model that cannot run on such machines; a model
// that is too large gets a `refusal`.
ModelPlan plan_model(const Checkpoint& checkpoint, const Wish& wish, const Cluster& cluster);
// Compares the plan's bytes with the memory of these machines; sets `refusal` and the bytes that
// each rank has left.
void judge(ModelPlan& plan, const Cluster& cluster);
// Throws Error of kind "memory" with the plan's refusal, if it has one.
void require_fit(const ModelPlan& plan, const std::string& folder);

// Returns the bytes of packed weights in host memory, for modules that can run: for a folder
// without a plan because it cannot run, and for a predictor.
std::vector<Bytes> packed_weights(const Checkpoint& checkpoint, const Wish& wish);
// Returns the sum of all amounts, whatever their memory and purpose.
uint64_t sum_of(std::span<const Bytes> bytes);

}  // namespace moebius
