// SPDX-License-Identifier: Apache-2.0
// The plan of a model: everything that is decided before a weight is read. Which rank runs which layers, which
// device runs which part of them, which experts are streamed, how many bytes that takes and where, and why it
// cannot be, if it cannot. Loading follows the plan; inspect, the server, ranks and the programming interfaces
// ask it. Nobody else places parts or adds up bytes.
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

// An amount of memory that a rank needs, what for, and where.
struct Bytes {
  std::string_view what;  // one of the names below
  std::string where;      // kHostMemory, or the name of a device ("cuda:1")
  uint64_t bytes = 0;
};
inline constexpr std::string_view kHostMemory = "memory";
inline constexpr std::string_view kWeightBytes = "weights";  // packed, but for routed experts
inline constexpr std::string_view kExpertBytes =
    "experts";  // on the CPU: routed; on a GPU with all that moves with them
inline constexpr std::string_view kStreamedBytes =
    "streamed experts";                                   // the host's copy in the GPU's form
inline constexpr std::string_view kKvBytes = "KV cache";  // of one sequence of the planned length
inline constexpr std::string_view kWorkBytes =
    "work";  // rows and tables of steps, buffers of streamed experts

struct RankPlan {
  Range layers;               // that the rank runs
  DevicePlacement placement;  // devices of the parts of layers, and the experts of divided layers
  CudaStreamed streamed;      // layers whose experts cross to the GPU for steps with many rows
  std::vector<Bytes> bytes;
  uint64_t left =
      0;  // bytes that the KV cache may take, where its first layer keeps it; 0: not known

  uint64_t sum(std::string_view where) const;
  uint64_t sum(std::string_view where, std::string_view what) const;
};

struct ModelPlan {
  Wish wish;
  DecoderSpec spec;
  KvPlan kv;  // of all layers and the predictor; its devices are left out
  std::vector<RankPlan> ranks;
  std::vector<std::string> words;  // what the wish left open and the plan decided, a sentence each
  std::string refusal;  // why the model does not fit, in a sentence with both numbers; "": it fits
};

// Reads headers and the small tensors that describe layouts; starts no thread and takes no device memory. Throws Error
// in words for a model that no such machine can run; a model that is too large has a `refusal`.
ModelPlan plan_model(const Checkpoint& checkpoint, const Wish& wish, const Cluster& cluster);
// Compares the plan's bytes with the memory of these machines: sets `refusal` and what each rank has left.
void judge(ModelPlan& plan, const Cluster& cluster);
// Throws Error of kind "memory" with the plan's refusal, if it has one.
void require_fit(const ModelPlan& plan, const std::string& folder);

// Packed weights of the modules that can run, in host memory: for a folder that has no plan because it cannot
// run, and for a predictor.
std::vector<Bytes> packed_weights(const Checkpoint& checkpoint, const Wish& wish);
uint64_t sum_of(std::span<const Bytes> bytes);

}  // namespace moebius
