// SPDX-License-Identifier: Apache-2.0
// The machines that are to run a model, as plan_model() sees them: memory, GPU, and how fast ranks exchange rows.
// Everything here is a value that can be made up, so that a plan for another machine can be asked for.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/cuda/cuda_choice.h"
#include "runtime/memory_limits.h"

namespace moebius {

struct CudaSettings;

// A GPU and the bytes of its memory that a model may use.
struct Gpu {
  CudaTarget target;
  uint64_t usable = 0;
};
// Bytes of a GPU that no model may use: they are for the driver and for other programs.
inline constexpr uint64_t kReservedBytes = uint64_t{1} << 30;

// The surroundings of one rank.
struct Machine {
  std::string host;  // ranks of one host share its limits of equal names
  std::vector<MemoryLimit>
      memory;  // limits of the rank's process; empty: not known, so nothing is too large
  std::optional<Gpu> gpu;  // none: the rank has no GPU, or nothing is known of it
};

struct LinkFacts {
  double latency = 0, rate = 0;  // seconds one way, bytes a second
};
std::string describe(const LinkFacts& link);  // "10G,30us", as parse_link() reads it

// The machines of all ranks; a single process is a cluster of one. Without machines, plan_model() places
// a model but does not judge whether it fits.
struct Cluster {
  std::vector<Machine> ranks;
  bool one_gpu = false;  // ranks are threads of one process, which share its GPU
};
// What this process may use: memory now, and the GPU of `cuda` where it has one. Throws Error where the GPU
// does not answer.
Machine this_machine(const CudaSettings& cuda);
// `ranks` threads of this process.
Cluster this_process(const CudaSettings& cuda, size_t ranks);

// Seconds of matrices by rows: measured at a few numbers of rows, linear between them, and above as
// the last one.
struct CostCurve {
  struct Point {
    double rows = 0, seconds = 0;  // per weight
  };
  static constexpr size_t kMost = 8;
  std::array<Point, kMost> points{};
  size_t count = 0;
  bool known() const { return count > 0; }
  void add(double rows, double seconds_per_weight);
  double seconds(double weights, double rows) const;
};

// Of all ranks: the mean of what each measured while the others did.
struct RankCosts {
  CostCurve experts, dense, output;  // unknown where the model has none
  CostCurve layer;  // beside matrices, of a layer: what every rank does with all rows
};

}  // namespace moebius
