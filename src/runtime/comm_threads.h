// SPDX-License-Identifier: Apache-2.0
// Ranks as threads of one process: for the sockets of a machine, one rank per NUMA node, and for
// tests, which ask for slow, stalled and dying ranks.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm.h"
#include "runtime/thread_pool.h"

namespace moebius {

// Happens to a rank when it starts its message number `at` (from 0).
struct RankFault {
  enum class Kind { kDelay, kStall, kDie };
  int rank = 0;
  uint64_t at = 0;
  Kind kind = Kind::kDelay;
  int microseconds = 0;  // kDelay; every message from `at` on. kStall: until another rank gives up
};

struct ThreadRanks {
  int ranks = 1;
  double timeout = 30;
  size_t largest_message = size_t{1} << 30;
  std::vector<RankFault> faults = {};
};

// One communicator per rank, each for a thread of its own.
std::vector<std::unique_ptr<Comm>> make_thread_comms(const ThreadRanks& options);

// Runs fn(comm) on every rank at once, rank 0 on the calling thread, and returns when all are done.
// A rank that throws ends the others; what it threw first is thrown here.
void run_thread_ranks(const ThreadRanks& options, FunctionRef<void(Comm&)> fn);

}  // namespace moebius
