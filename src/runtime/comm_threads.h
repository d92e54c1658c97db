// SPDX-License-Identifier: Apache-2.0
// Runs ranks as threads of one process: for one rank per NUMA node, and for tests, which make ranks
// slow, stall or die.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/comm.h"
#include "runtime/thread_pool.h"

namespace moebius {

// A fault that a test injects when a rank starts its message number `at` (from 0).
struct RankFault {
  enum class Kind { kDelay, kStall, kDie };
  int rank = 0;
  uint64_t at = 0;
  Kind kind = Kind::kDelay;
  // For kDelay: how much longer every message from `at` on takes. kStall: the rank stops until
  // another one gives up.
  int microseconds = 0;
};

struct ThreadRanks {
  int ranks = 1;
  double timeout = 30;
  size_t largest_message = size_t{1} << 30;
  std::vector<RankFault> faults = {};
};

// Returns one communicator per rank; each must be used by a thread of its own, which may be any.
std::vector<std::unique_ptr<Comm>> make_thread_comms(const ThreadRanks& options);

// Runs fn(comm) for every rank at once, rank 0 on the calling thread, and returns when all are
// done. A rank that throws ends the others; the first exception is rethrown here.
void run_thread_ranks(const ThreadRanks& options, FunctionRef<void(Comm&)> fn);

}  // namespace moebius
