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

// Says which part of the layers this process loads in a run over several ranks; the default is the
// whole model on one rank.
struct Rank {
  uint64_t tp = 1, tp_rank = 0, ep = 1, ep_rank = 0;
  Placement placement = Placement::kLinear;
  // Selects how second matrices (down, o_proj; see cut_of) are cut. kOutputs: nothing is added
  // across ranks, so results have the bytes of one rank; layers then need an exchange
  // (nn/moe_exchange.h), and parts may be of unequal size.
  Cut second = Cut::kInputs;
  // Source of dynamic scales of rows if a matrix is divided by inputs. true: this rank's inputs
  // alone; false: the maxima over all ranks, which the layer's caller provides.
  bool own_maxima = false;
  // Expert in each place if busy experts have copies: places of rank 0, then of rank 1, ...,
  // equally many per rank. Empty: as `placement` says. Only if `second` is kOutputs.
  std::vector<uint32_t> expert_of = {};
  // For two ranks: the number of places on the first rank, which also combines all columns. Unset:
  // equally many places per rank.
  std::optional<size_t> first_places = {};
};

// Returns the type of activations for the user's option; "auto" is the type that the config
// declares.
XType activation_type(const std::string& option, const std::string& config_dtype);

struct LayerLoadOptions {
  Policy policy;
  ActRequest act;
  XType x_type = XType::kBf16;
  Rank rank;
  // Matrices larger than this number of bytes are read and packed in blocks of rows of about that
  // size, because an lm_head can be larger than many experts.
  uint64_t block_bytes = uint64_t{4} << 20;
  // Receives the number of bytes read from files since its last call; called from any thread.
  std::function<void(uint64_t bytes)> progress;
  // Receives the rows that layers read (tap.h); null: nobody does. Must outlive the layers, as must
  // the checkpoint.
  ModuleTap* tap = nullptr;
  // true: the output projection also finds its greatest outputs (LinearOp::forward_few), on a CPU.
  bool shortlist = false;
};

// Names some outputs of a module; {0, 0}: all.
struct ModuleOutputs {
  const Module* module;
  Range outputs = {};
};

// kExperts: only the routed experts, for callers with their own router and shared experts.
enum class MoePart : uint8_t { kBlock, kExperts };

}  // namespace moebius
