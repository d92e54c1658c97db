// SPDX-License-Identifier: Apache-2.0
// Holds what rank 0 announces before each step, as a value and as bytes. It contains everything
// that depends on a sequence's text or on a scheduler's choice, so that the other ranks choose
// nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"

namespace moebius {

struct StepPlan {
  // Selects what the other ranks are to do. kFinish: compute logits of the oldest step whose rows
  // have left the last stage.
  enum class Kind : uint8_t {
    kStep,
    kFinish,
    kCopy,
    kCut,
    kCommit,
    kTrim,
    kBeat,
    kLoads,
    kMove,
    kSwitch,
    kDrop,
    kStop
  };
  struct Item {
    uint64_t sequence = 0;  // sequence whose memory the block numbers refer to; 0: the engine's
    uint64_t position = 0, length = 0;
    LogitsOf logits = LogitsOf::kNone;
    std::vector<int32_t> tokens;
    BlockTables tables;
    bool operator==(const Item&) const = default;
  };
  uint64_t serial = 0;  // number of the plan, counted up by one
  Kind kind = Kind::kBeat;
  std::vector<Item> items{};      // for kStep: items of the step
  std::vector<uint64_t> ended{};  // for kStep: sequences whose memory can be freed
  // For kMove, kSwitch and kDrop (expert_balance.h), where block_kind is a layer; kMove: the future
  // expert of each place.
  std::vector<uint32_t> experts{};
  // Arguments of the Backend function that has the kind's name.
  uint64_t block_kind = 0, from = 0, to = 0, count = 0;
  bool operator==(const StepPlan&) const = default;
};

std::vector<uint8_t> encode(const StepPlan& plan);
// Throws Error for bytes that are no plan.
StepPlan decode_step_plan(std::span<const uint8_t> bytes);

}  // namespace moebius
