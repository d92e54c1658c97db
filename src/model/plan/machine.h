// SPDX-License-Identifier: Apache-2.0
// Describes the machines that will run a model, as plan_model() sees them: memory, GPU, and how
// fast ranks exchange rows. These types are plain values: a plan for another machine can be
// computed from invented ones.
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

// Describes a GPU and the bytes of its memory that a model may use.
struct Gpu {
  CudaTarget target;
  uint64_t usable = 0;
};
// Bytes of a GPU that no model may use: they are left to the driver and to other programs.
inline constexpr uint64_t kReservedBytes = uint64_t{1} << 30;

// Describes the host, memory and GPU of one rank.
struct Machine {
  // name of the computer; memory limits of equal name are shared by the ranks of one host
  std::string host;
  // Limits on the memory of the rank's process; empty: unknown, and then no model is too large.
  std::vector<MemoryLimit> memory;
  std::optional<Gpu> gpu;  // unset: the rank has no GPU, or it is unknown
};

struct LinkFacts {
  double latency = 0, rate = 0;  // seconds that a message needs one way; bytes per second
};
// Returns text such as "10G,30us", which parse_link() reads.
std::string describe(const LinkFacts& link);

// Describes the machines of all ranks; a single process is a cluster of one. Without machines,
// plan_model() places a model but does not judge whether it fits.
struct Cluster {
  std::vector<Machine> ranks;
  bool one_gpu = false;  // the ranks are threads of one process and share its GPU
};
// Returns what this process may use: the memory that is free now, and the GPU of `cuda` if it has
// one. Throws Error if the GPU does not answer.
Machine this_machine(const CudaSettings& cuda);
// Returns the cluster of `ranks` threads of this process. Throws Error like this_machine().
Cluster this_process(const CudaSettings& cuda, size_t ranks);

// Predicts the seconds that multiplying by a matrix takes, by its number of weights and of rows.
// Points are measured at a few numbers of rows; between them the curve is linear, beyond the last
// one it goes on with its slope.
struct CostCurve {
  struct Point {
    double rows = 0, seconds = 0;  // seconds per weight of the matrix
  };
  static constexpr size_t kMost = 8;
  std::array<Point, kMost> points{};
  size_t count = 0;
  bool known() const { return count > 0; }
  void add(double rows, double seconds_per_weight);
  double seconds(double weights, double rows) const;
};

// Predicts the time of a rank's work. Means of what all ranks measured at the same time.
struct RankCosts {
  // matrices of experts, of the rest of the layers, of the logits; empty if the model has none
  CostCurve experts, dense, output;
  // seconds per layer for everything but matrices, which every rank does for all rows
  CostCurve layer;
};

}  // namespace moebius
