// SPDX-License-Identifier: Apache-2.0
// What is asked of layers when they are loaded, on any device.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/parallel.h"
#include "kernels/oracle.h"
#include "quant/act_request.h"

namespace moebius {

struct Module;
class ModuleTap;

// One rank of a parallel run; the default is the whole model.
struct Rank {
  uint64_t tp = 1, tp_rank = 0, ep = 1, ep_rank = 0;
  Placement placement = Placement::kLinear;
  // As in cut_of. kOutputs: nothing is added over ranks, so bytes are those of one; layers need an
  // exchange (nn/moe_exchange.h), and parts need not be equal.
  Cut second = Cut::kInputs;
  // Dynamic rows of a matrix that is cut by inputs are scaled by this rank's own inputs; the
  // default takes the maxima of all ranks, which the caller of the layer then brings.
  bool own_maxima = false;
  // Where busy experts have copies: what every place for an expert holds, on rank 0, on rank 1, ..., as
  // many on each. Empty: `placement` says it. With `second` by outputs only.
  std::vector<uint32_t> expert_of = {};
  // Of two ranks the first has so many of these places, and all columns of the sum; none: as many on each.
  std::optional<size_t> first_places = {};
};

// Type of activations of a folder ("auto": what its config declares).
XType activation_type(const std::string& option, const std::string& config_dtype);

struct LoadOptions {
  Policy policy;
  ActRequest act;
  XType x_type = XType::kBf16;
  Rank rank;
  // A larger linear matrix is read and packed in blocks of rows of about this size: an lm_head can
  // outweigh many experts.
  uint64_t block_bytes = uint64_t{4} << 20;
  std::function<void(uint64_t bytes)> progress;  // file bytes done; called from any thread
  ModuleTap* tap = nullptr;  // sees what layers read (tap.h); it and the checkpoint outlive them
};

// Some outputs of a module; {0, 0}: all.
struct ModuleOutputs {
  const Module* module;
  Range outputs = {};
};

// kExperts: the routed experts alone, as a caller with its own router and shared experts wants
// them.
enum class MoePart : uint8_t { kBlock, kExperts };

}  // namespace moebius
