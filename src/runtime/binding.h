// SPDX-License-Identifier: Apache-2.0
// Chooses the CPUs that each rank of a host computes on. Launchers differ: Open MPI binds each of
// two ranks to one core, MPICH binds to none, so that cores are idle or contended. Ranks of a host
// exchange their affinity masks; if these leave CPUs unused or overlap, every rank takes an equal
// share of the cores, NUMA node by NUMA node.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "runtime/topology.h"

namespace moebius {

class Comm;

struct RankBinding {
  std::vector<int> cpus;  // CPUs of this rank, ascending
  size_t ranks = 1;       // number of ranks on this host
  bool changed = false;   // true: these are other CPUs than the launcher chose
  // true: more ranks than cores; they share all cores, and must yield instead of spinning
  bool crowded = false;
  // Message for the user if `changed`: "CPUs 0-3 instead of 0 (2 ranks on this host ...)"
  std::string note;
};

// Returns the binding of rank `rank` of masks.size() ranks, masks[i] being the CPUs that the
// launcher gave to rank i, on a machine whose CPUs they may all use. A pure function of its
// arguments.
RankBinding plan_binding(const Topology& machine, std::span<const std::vector<int>> masks,
                         size_t rank);

// Binds the calling thread, and the threads that it starts later, to this rank's CPUs. All ranks
// call it, before they start threads. `keep`: the launcher's masks are kept. `own_only`: CPUs
// outside of all ranks' masks are left to other programs.
RankBinding bind_rank(Comm& comm, bool keep, bool own_only);

}  // namespace moebius
