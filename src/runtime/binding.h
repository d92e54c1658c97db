// SPDX-License-Identifier: Apache-2.0
// Which CPUs each rank of a host computes on. Launchers have their own ideas: Open MPI binds each of
// two ranks to one core, MPICH binds to none, so that cores stay idle or are fought over. Ranks of a
// host tell each other their masks; where these leave CPUs unused or overlap, every rank takes an
// equal part of the cores, node by node.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "runtime/topology.h"

namespace moebius {

class Comm;

struct RankBinding {
  std::vector<int> cpus;  // of this rank, ascending
  size_t ranks = 1;       // on this host
  bool changed = false;   // other CPUs than the launcher gave
  bool crowded = false;   // ranks outnumber cores: they share all, and must not spin
  std::string note;       // where it changed: "CPUs 0-3 instead of 0 (2 ranks on this host ...)"
};

// Rank `rank` of those whose masks are given, on a machine whose CPUs all may be used. Pure.
RankBinding plan_binding(const Topology& machine, std::span<const std::vector<int>> masks,
                         size_t rank);

// Called by all ranks, before threads are started: binds the calling thread and what it will start.
// `keep`: the launcher's masks stay. `own_only`: CPUs that no rank was given belong to others.
RankBinding bind_rank(Comm& comm, bool keep, bool own_only);

}  // namespace moebius
