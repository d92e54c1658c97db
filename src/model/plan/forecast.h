// SPDX-License-Identifier: Apache-2.0
// Forecasts how fast a plan would run, from its modules and the rates of machines, before anything
// is loaded. Keys and values are not looked at, and rows find experts by chance, or by the
// loads of the plan's wish.
//
// On a GPU a layer takes the time of its bytes and a fixed one, in which its kernels wait for each
// other; experts on the CPU the time of their bytes and that of handing rows over; rows of logits
// go to the host. On CPUs of ranks, matrices take the time that was measured (rank_costs.h); else
// (memory^2.3 + compute^2.3)^(1/2.3), with their bytes at the rate of the node and their
// multiply-adds at the node's, which follow its cores, fitted to two and to 64 of them. The time of
// experts is the mean of some draws, on ranks that have different ones that of the busiest. A round
// of an exchange costs latency + bytes / rate, and nothing overlaps.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "model/plan/gpu_memory.h"
#include "model/plan/model_plan.h"

namespace moebius {

// Describes a node, which runs one rank.
struct NodeFacts {
  double cores = 1;
  uint64_t memory = 0;  // bytes for weights; 0: not checked
  // Measured rates; 0: those that such cores usually reach are used.
  double measured_read = 0, measured_multiply = 0;
  RankCosts costs = {};      // measured costs of this model; they take precedence over the rates
  double read_rate() const;  // bytes of memory read per second, measured or usual
  double multiply_rate() const;  // multiply-adds per second, measured or usual
};

// Holds what a forecast asks, and those rates of the machines that no entry of a plan has.
struct Rates {
  // Bytes per second; measured on an H200, for machines without a measurement. gpu_ways() and
  // gpu_rank_ways() plan for machines that read at gpu_read and cpu_read.
  double gpu_read = 4.3e12, cpu_read = 0, link = 55e9;
  NodeFacts node = {};                  // of ranks on CPUs
  LinkFacts between = {};               // between ranks
  double disk = 0;                      // bytes per second of the folder's disk; 0: not asked
  uint64_t memory = 0;                  // bytes for weights beside the disk
  std::vector<size_t> sequences = {1};  // decode steps to forecast
  size_t prompt = 0;                    // tokens of a prompt in one step; 0: not asked
};

struct Forecast {
  struct Step {
    size_t sequences = 0;
    // Seconds; crossing: between GPU and CPU, or between GPUs; exchange: between CPUs.
    double gpu = 0, cpu = 0, crossing = 0, exchange = 0;
    double seconds() const { return gpu + cpu + crossing + exchange; }
    double tokens_per_second() const { return static_cast<double>(sequences) / seconds(); }
  };
  std::vector<Step> decode;
  Step prompt;
  // Bytes that a token reads from disk if not all experts fit into memory, and the tokens per
  // second that the disk allows one sequence. All experts count as equally likely.
  uint64_t disk_bytes = 0;
  double disk_tokens_per_second = 0;
};
// Memory is read at the rates of the plan's entries.
Forecast forecast(const ModelPlan& plan, const Rates& rates);

// A way to run a model on GPUs, with its forecast.
struct GpuWay {
  std::string words;   // the options of a command that ask for it
  RankSplit split;     // one rank, or several
  uint64_t bytes = 0;  // bytes on the fullest GPU
  PlacedExperts placed;
  Forecast forecast;
};
// Returns the whole model on the GPU, and all experts on the CPU if its rate is known; if the first
// does not fit, also `--experts auto`. `allowed`: bytes of the GPU that may be used. Empty for an
// architecture that cannot run.
std::vector<GpuWay> gpu_ways(const Checkpoint& checkpoint, const Wish& wish,
                             const GpuTarget& target, const Rates& rates, uint64_t allowed);
// Returns the ways to share the model among so many ranks with such a GPU each (--pp, --ep and
// both), the fastest with the first number of sequences first. Rows of experts travel over the
// hosts and the link between them.
std::vector<GpuWay> gpu_rank_ways(const Checkpoint& checkpoint, const Wish& wish,
                                  const GpuTarget& target, const Rates& rates, size_t ranks);

}  // namespace moebius
