// SPDX-License-Identifier: Apache-2.0
// How to share a model out over ranks, before anything is read: what each rank would hold, how long
// steps would take, and which split is best. Pure functions of headers and of facts about machines.
//
// Time of matrices: as measured (rank_costs.h); else (memory^2.3 + compute^2.3)^(1/2.3), with their
// bytes at the rate of the node and their multiply-adds at the node's, which follow its cores, fitted
// to two and to 64 of them. Rows find their experts by chance, all as likely: the time of experts is
// the mean of some draws, on ranks that have different ones that of the busiest. A round of an exchange
// costs latency + bytes / rate, and nothing overlaps. Keys and values are not looked at.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "model/ranks.h"
#include "model/ranks/rank_costs.h"

namespace moebius {

// What one rank of a split holds, as bytes of files.
struct RankPart {
  size_t rank = 0, stage = 0, member = 0;
  Range layers;
  uint64_t bytes = 0;
};
// Throws Error in words for a model that cannot be cut so. `weigh`: bytes of a whole module, where
// those of the files are not meant.
std::vector<RankPart> rank_parts(const Checkpoint& checkpoint, const RankSplit& split,
                                 const std::function<uint64_t(const Module&)>& weigh = {});

// A rank per node.
struct NodeFacts {
  double cores = 1;
  uint64_t memory = 0;  // bytes for weights; 0: not looked at
  // Where they were measured; 0: what such cores reach.
  double measured_read = 0, measured_multiply = 0;
  RankCosts costs = {};  // of this model there; what is known of them counts more than the rates
  double read_rate() const;      // bytes a second
  double multiply_rate() const;  // multiply-adds a second
};
// "64x256G": cores and memory; "1x8G@24G,70G" with bytes and multiply-adds a second. "10G,30us": bits a second and latency one way. Throw Error.
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
  uint64_t bytes = 0;           // of the fullest rank
  uint64_t missing = 0;         // that its node has not
  double step = 0, prompt = 0;  // seconds of a decode step of the batch, of the prompt in one step
  double exchange = 0;          // of the step
  std::string refusal;          // why the model cannot be cut so; the rest is 0 then
  std::string reason;           // in words
  bool fits() const { return refusal.empty() && missing == 0; }
};
// All splits into so many ranks, the best first: those that fit by the time of a step, then those
// that do not by what is missing, then those that cannot be.
std::vector<RankForecast> plan_ranks(const Checkpoint& checkpoint, const RankQuestion& question);

}  // namespace moebius
