// SPDX-License-Identifier: Apache-2.0
// Forecasts how fast a model decodes on a GPU, or shared by GPU and CPU, from headers and memory
// rates, before anything is loaded. A layer on the GPU takes the time of its bytes and a fixed one,
// in which its kernels wait for each other; experts on the CPU the time of their bytes and that of
// handing rows over; rows of logits go to the host. Keys and values are not looked at, and rows
// find experts by chance, or by measured loads.
#pragma once
#include <string>
#include <vector>

#include "model/plan/cuda_memory.h"
#include "model/plan/rank_plan.h"

namespace moebius {

struct CudaRates {
  // Bytes per second of reading GPU memory, of reading host memory (0: not known), and of copies
  // between them; for machines without a measurement, those of an H200.
  double gpu_read = 4.3e12, cpu_read = 0, link = 55e9;
};

// Seconds that handing rows over and taking them back costs, on the same machine.
inline constexpr double kHandOver = 100e-6;

struct CudaForecast {
  std::string words;   // options of a command that ask for this placement
  RankSplit split;     // one rank, or several
  uint64_t bytes = 0;  // bytes on the device
  PlacedExperts placed;
  struct Decode {
    size_t sequences = 0;
    double gpu = 0, cpu = 0, crossing = 0;  // seconds of a step
    double tokens_per_second() const {
      return static_cast<double>(sequences) / (gpu + cpu + crossing);
    }
  };
  std::vector<Decode> decode;
};
// Forecasts the whole model on the device, and all experts on the CPU; if the first does not fit,
// also `--experts auto`. `allowed`: bytes of the device that may be used; options.loads_file: how
// busy experts are. Empty for an architecture that cannot run.
std::vector<CudaForecast> forecast_cuda(const Checkpoint& checkpoint, const Wish& options,
                                        const CudaTarget& target, const CudaRates& rates,
                                        uint64_t allowed, std::span<const size_t> sequences);
// Forecasts ways to share the model among so many ranks with such a device each (--pp, --ep and
// both), sorted by the first number of sequences, fastest first; `bytes` are those of the fullest
// rank. Rows of experts travel over the hosts and the link `between` them.
std::vector<CudaForecast> forecast_cuda_ranks(const Checkpoint& checkpoint, const Wish& options,
                                              const CudaTarget& target, const CudaRates& rates,
                                              const LinkFacts& between, size_t ranks,
                                              std::span<const size_t> sequences);

}  // namespace moebius
