// SPDX-License-Identifier: Apache-2.0
// Says what a caller asks of a model before it is loaded; plan_model() reads nothing else of the
// caller's.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "device/load_options.h"
#include "device/placement.h"
#include "model/plan/kv_plan.h"
#include "model/rank_split.h"

namespace moebius {

// Says how experts that do not fit memory are kept. kAuto: in an expert store (nn/expert_store.h)
// if they do not fit, else in memory. kPool: in a store. kPage: in a mapped file of packed weights.
enum class ExpertCache : uint8_t { kAuto, kPool, kPage };

struct Wish {
  DevicePlacement placement;  // device of each part of a layer
  GpuSettings gpu;  // how the GPU that `placement` names is used: memory, experts, streaming
  RankSplit split;
  Policy policy;
  ActRequest act;
  XType type = XType::kBf16;  // type of activations between layers
  // Type of stored keys and values; unset: as the checkpoint declares, else `type`.
  std::optional<KvType> kv_type;
  size_t context = 0;  // longest sequence in tokens; 0: kUsualContext
  // Folder of packed weights (device/packed_store.h); "": weights are packed into memory.
  std::string pack_dir;
  ExpertCache expert_cache = ExpertCache::kAuto;
  // Bytes of memory for the places of a store; unset: what memory has room for. In a plan: 0 if
  // there is no store.
  std::optional<uint64_t> expert_bytes;
  // true: experts are read from disk before a layer asks for them, where that is likely
  bool expects_experts = true;
  // file with the loads of experts (expert_loads.h), which decides what a GPU holds; "": none
  std::string loads_file;
  // true: the output projection of one process on a CPU has an int8 copy that finds the best tokens
  // (nn/shortlist.h); the same bytes without. Unset: where it is worth its memory, and weights are
  // not kept packed, because it is made anew at each start.
  std::optional<bool> shortlist;
  // true: also loads the layer for multi-token prediction (predictor_plan.h).
  bool predictor = false;

  KvChoice kv() const { return {type, kv_type, policy.accept == Accept::kExact}; }
};

}  // namespace moebius
