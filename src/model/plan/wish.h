// SPDX-License-Identifier: Apache-2.0
// What a caller may ask of a model before it is loaded: plan_model() reads it and nothing else of the caller's.
#pragma once
#include <cstddef>
#include <optional>
#include <string>

#include "device/load_options.h"
#include "device/placement.h"
#include "model/plan/kv_plan.h"
#include "model/rank_split.h"

namespace moebius {

struct Wish {
  DevicePlacement placement;  // devices of the parts of layers
  CudaSettings cuda;          // the GPU that `placement` names: memory, experts, streaming
  RankSplit split;
  Policy policy;
  ActRequest act;
  XType type = XType::kBf16;  // of activations between layers
  std::optional<KvType>
      kv_type;         // of keys and values; none: as the checkpoint declares, else `type`
  size_t context = 0;  // longest sequence that will be run, in tokens; 0: kUsualContext
  std::string
      pack_dir;  // folder of packed weights (device/cpu/packed_store.h); "": packed into memory
  std::string loads_file;  // table of expert loads (expert_loads.h); "": none
  bool predictor = false;  // with the layer for multi-token prediction (predictor_plan.h)

  KvChoice kv() const { return {type, kv_type, policy.accept == Accept::kExact}; }
};

}  // namespace moebius
