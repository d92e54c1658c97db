// SPDX-License-Identifier: Apache-2.0
// Describes the machine: cores, hardware threads, efficient cores, NUMA nodes, caches, and the part
// that this process may use. Read once from sysfs and CPUID; tests replace the sources to describe
// other machines.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cpu.h"

namespace moebius {

// One hardware thread that this process may use.
struct HardwareThread {
  int cpu = 0;   // the system's number of the hardware thread
  int core = 0;  // number of the first hardware thread of the same core
  int node = 0;
  int rank = 0;  // 0 for the first usable hardware thread of its core, 1 for the next, ...
  bool efficient = false;  // true: a small core of a machine that also has bigger ones

  bool operator==(const HardwareThread&) const = default;
};

struct Topology {
  // Hardware threads in the order in which a pool uses them: one of each big core, node by node,
  // then the efficient cores, then the second hardware threads.
  std::vector<HardwareThread> threads;
  double quota = 0;  // CPUs that the control group grants; 0: no limit
  Caches caches;     // caches of the machine's first big core

  size_t cores() const;  // number of usable cores of every kind
  size_t efficient_cores() const;
  size_t nodes() const;
  size_t default_threads() const;  // number of threads that a pool should have, at least 1
};

struct CpuidWords {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};
// Executes CPUID on this CPU; returns zeros if the leaf or the instruction does not exist.
CpuidWords cpuid(uint32_t leaf, uint32_t sub);
// Executes CPUID on CPU `cpu` (-1: wherever the caller runs).
using CpuidReader = std::function<CpuidWords(int cpu, uint32_t leaf, uint32_t sub)>;

// Sources that read_topology() reads; tests replace them.
struct MachineSources {
  std::string root;          // prefixed to /sys and /proc
  std::vector<int> allowed;  // CPUs of the affinity mask; empty: there is no mask
  CpuidReader cpuid;         // empty: the machine has no CPUID
  Caches otherwise;          // assumed if the sources tell no caches
};

Topology read_topology(const MachineSources& sources);
// Returns the part of a topology that lies within another affinity mask; all of it if nothing would
// remain.
Topology restrict_to(Topology topology, const std::vector<int>& allowed);

// Returns what the calling thread may use of this machine; sysfs and CPUID are read once per
// process.
Topology usable_topology();
// Limits this process to one of `ranks` shares of the control group's CPUs. Call before threads
// start.
void share_quota(size_t ranks);
// Returns text such as "16 cores (8 efficient), 24 threads, 1 node"
std::string describe(const Topology& topology);

}  // namespace moebius
