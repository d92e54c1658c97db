// SPDX-License-Identifier: Apache-2.0
// Describes the machines that will run a model, as plan_model() sees them: memory, GPU, and how
// fast ranks exchange rows. These types are plain values: a plan for another machine can be
// computed from invented ones.
#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "device/gpu.h"
#include "device/layer_costs.h"
#include "runtime/cpu.h"
#include "runtime/memory_limits.h"

namespace moebius {

struct GpuSettings;

// Describes a GPU and the bytes of its memory that a model may use.
struct Gpu {
  GpuTarget target;
  uint64_t usable = 0;
  double read_rate = 0;  // bytes of its memory per second, measured or assumed; 0: not known
};
// Bytes of a GPU that no model may use: they are left to the driver and to other programs.
inline constexpr uint64_t kReservedBytes = uint64_t{1} << 30;

// Describes the host, memory and GPU of one rank.
struct Machine {
  // Name of the computer; memory limits of equal name are shared by the ranks of one host.
  std::string host;
  // Limits on the memory of the rank's process; empty: unknown, and then no model is too large.
  std::vector<MemoryLimit> memory;
  std::optional<Gpu> gpu;  // unset: the rank has no GPU, or it is unknown
  Cpu cpu = host_cpu();
  double read_rate = 0;  // bytes of host memory per second, measured or assumed; 0: not known
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
// Returns what this process may use: the memory that is free now, and the GPU of `gpu` if it has
// one. Throws Error if the GPU does not answer.
Machine this_machine(const GpuSettings& gpu);
// Returns the cluster of `ranks` threads of this process. Throws Error like this_machine().
Cluster this_process(const GpuSettings& gpu, size_t ranks);

}  // namespace moebius
