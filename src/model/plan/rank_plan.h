// SPDX-License-Identifier: Apache-2.0
// Plans how ranks share a model, before anything is read: what each rank would hold, how long steps
// would take (forecast.h), and which split is best. All are pure functions of headers and of facts
// about machines.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/plan/forecast.h"

namespace moebius {

// Holds the bytes that one rank of a split would hold.
struct RankPart {
  size_t rank = 0, stage = 0, member = 0;
  Range layers;
  uint64_t bytes = 0;  // bytes of the files, or as `weigh` counts them
  // What the rank holds of the modules, counted so.
  struct Held {
    const Module* module;
    Cut cut;  // kOutputs: some outputs
    uint64_t bytes;
  };
  std::vector<Held> modules;
};
// Returns the parts of all ranks. Throws Error for a model that cannot be split in this way. weigh:
// returns the bytes of a whole module, in place of its bytes in the files.
std::vector<RankPart> rank_parts(const Checkpoint& checkpoint, const RankSplit& split,
                                 const std::function<uint64_t(const Module&)>& weigh = {});

// parse_node reads "64x256G" (cores and memory) or "1x8G@24G,70G" (with bytes and multiply-adds per
// second); parse_link reads "10G,30us" (bits per second and latency one way). Both throw Error.
NodeFacts parse_node(const std::string& text);
LinkFacts parse_link(const std::string& text);

struct RankQuestion {
  size_t ranks = 1;
  NodeFacts node;
  LinkFacts link;
  size_t batch = 1, prompt = 512;
};

struct RankForecast {
  RankSplit split;
  uint64_t bytes = 0;    // bytes of the fullest rank
  uint64_t missing = 0;  // bytes that its node lacks
  // Seconds of a decode step of the batch, and of the prompt in one step.
  double step = 0, prompt = 0;
  double exchange = 0;  // the part of the step for exchanges
  std::string refusal;  // why the model cannot be split in this way; the numbers are then 0
  std::string reason;   // why the split stands at this place of the list
  bool fits() const { return refusal.empty() && missing == 0; }
};
// Returns all splits into so many ranks, the best first: those that fit by the time of a step, then
// those that do not by the missing bytes, then those that are impossible.
std::vector<RankForecast> plan_ranks(const Checkpoint& checkpoint, const RankQuestion& question);

}  // namespace moebius
