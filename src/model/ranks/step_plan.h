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
  // kFinish: the oldest step whose rows have left the last stage gets its logits.
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
  uint64_t serial = 0;  // number of the plan, one more each time
  Kind kind = Kind::kBeat;
  std::vector<Item> items;      // kStep: items of the step
  std::vector<uint64_t> ended;  // kStep: sequences whose memory can be freed
  // kMove, kSwitch, kDrop (expert_balance.h): block_kind is a layer. kMove: `experts` is the future
  // expert of each place.
  std::vector<uint32_t> experts;
  // Other kinds: arguments of the Backend function with this name.
  uint64_t block_kind = 0, from = 0, to = 0, count = 0;
  bool operator==(const StepPlan&) const = default;
};

std::vector<uint8_t> encode(const StepPlan& plan);
// Throws Error for bytes that are no plan.
StepPlan decode_step_plan(std::span<const uint8_t> bytes);

}  // namespace moebius
