// SPDX-License-Identifier: Apache-2.0
// What the machine is made of: cores, hardware threads, efficient cores, NUMA nodes, caches, and
// how much of it this process may use. Read once from sysfs and CPUID; every source can be
// replaced, so that tests describe machines that are not there.
#pragma once
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/cpu.h"

namespace moebius {

// A hardware thread that this process may use.
struct HardwareThread {
  int cpu = 0;   // the system's number
  int core = 0;  // number of the first hardware thread of the same core
  int node = 0;
  int rank = 0;            // 0 for the first usable hardware thread of its core, 1 for the next ...
  bool efficient = false;  // a small core beside bigger ones

  bool operator==(const HardwareThread&) const = default;
};

struct Topology {
  // In the order in which a pool takes them: one hardware thread of every big core, node by node,
  // then the efficient cores, then the second hardware threads.
  std::vector<HardwareThread> threads;
  double quota = 0;  // CPUs that the control group grants; 0 when it sets no limit
  Caches caches;     // of the machine's first big core

  size_t cores() const;  // usable ones, of every kind
  size_t efficient_cores() const;
  size_t nodes() const;
  size_t default_threads() const;  // at least 1
};

struct CpuidWords {
  uint32_t a = 0, b = 0, c = 0, d = 0;
};
CpuidWords cpuid(uint32_t leaf,
                 uint32_t sub);  // zeros for a leaf or an instruction that is not there
// The same as executed on one CPU (-1: wherever the caller runs).
using CpuidReader = std::function<CpuidWords(int cpu, uint32_t leaf, uint32_t sub)>;

// Where the facts come from.
struct MachineSources {
  std::string root;          // stands before /sys and /proc
  std::vector<int> allowed;  // affinity mask; empty: no mask
  CpuidReader cpuid;         // empty: no such instruction
  Caches otherwise;          // where nothing is found
};

Topology read_topology(const MachineSources& sources);
// What is left of it under another affinity mask; all of it when nothing would be left.
Topology restrict_to(Topology topology, const std::vector<int>& allowed);

// What the calling thread may use of this machine (sysfs and CPUID are asked once).
Topology usable_topology();
// From now on this process has one part of `ranks` of the control group's CPUs. Before threads start.
void share_quota(size_t ranks);
std::string describe(const Topology& topology);  // "16 cores (8 efficient), 24 threads, 1 node"

}  // namespace moebius
