// SPDX-License-Identifier: Apache-2.0
// Options for loading layers on any device.
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

// One rank of a parallel run; the default is the whole model on one rank.
struct Rank {
  uint64_t tp = 1, tp_rank = 0, ep = 1, ep_rank = 0;
  Placement placement = Placement::kLinear;
  // The cut of second matrices (cut_of). kOutputs: nothing is added across ranks, so results have
  // the bytes of one rank; layers then need an exchange (nn/moe_exchange.h), and parts may be of
  // unequal size.
  Cut second = Cut::kInputs;
  // Scales of dynamic rows for a matrix divided by inputs. true: from this rank's inputs alone;
  // false: from the maxima over all ranks, which the layer's caller provides.
  bool own_maxima = false;
  // Places of experts if busy ones have copies: the expert in each place of rank 0, then of rank 1,
  // ..., equally many per rank. Empty: as `placement` says. Only if `second` is kOutputs.
  std::vector<uint32_t> expert_of = {};
  // For two ranks: the number of places on the first, which also combines all columns. None:
  // equally many places per rank.
  std::optional<size_t> first_places = {};
};

// Returns the type of activations: "auto" is the type that the config declares.
XType activation_type(const std::string& option, const std::string& config_dtype);

struct LoadOptions {
  Policy policy;
  ActRequest act;
  XType x_type = XType::kBf16;
  Rank rank;
  // Larger linear matrices are read and packed in blocks of rows of about this many bytes, because
  // an lm_head can be larger than many experts.
  uint64_t block_bytes = uint64_t{4} << 20;
  // Receives the file bytes that were read; called from any thread.
  std::function<void(uint64_t bytes)> progress;
  // Sees what layers read (tap.h); must outlive the layers, as must the checkpoint.
  ModuleTap* tap = nullptr;
};

// A module, and which of its outputs; {0, 0}: all.
struct ModuleOutputs {
  const Module* module;
  Range outputs = {};
};

// kExperts: only the routed experts, for callers with their own router and shared experts.
enum class MoePart : uint8_t { kBlock, kExperts };

}  // namespace moebius
