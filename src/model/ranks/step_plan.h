// SPDX-License-Identifier: Apache-2.0
// What rank 0 tells the others before each step, as a value and as bytes. Everything that depends on
// a sequence's text or on a scheduler's choice is in it, so that the other ranks choose nothing.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"

namespace moebius {

struct StepPlan {
  // kFinish: the oldest step whose rows the last stage has passed on gets its logits.
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
    uint64_t sequence = 0;  // whose memory its blocks are numbers of; 0: the engine's
    uint64_t position = 0, length = 0;
    LogitsOf logits = LogitsOf::kNone;
    std::vector<int32_t> tokens;
    BlockTables tables;
    bool operator==(const Item&) const = default;
  };
  uint64_t serial = 0;  // of the plan: one more each time
  Kind kind = Kind::kBeat;
  std::vector<Item> items;      // kStep
  std::vector<uint64_t> ended;  // kStep: sequences whose memory can go
  // kMove, kSwitch, kDrop (expert_balance.h): block_kind is a layer; kMove: what its places hold.
  std::vector<uint32_t> experts;
  // The others: what the function of Backend with this name takes.
  uint64_t block_kind = 0, from = 0, to = 0, count = 0;
  bool operator==(const StepPlan&) const = default;
};

std::vector<uint8_t> encode(const StepPlan& plan);
// Throws Error in words for bytes that are no plan.
StepPlan decode_step_plan(std::span<const uint8_t> bytes);

}  // namespace moebius
