// SPDX-License-Identifier: Apache-2.0
// Reports where a killed rank was. A killed rank says nothing, and not every launcher names it; so
// each rank process starts a witness first: a small process that notices the rank's end and reports
// the rank's last step and phase. The witness ends with the rank, and says nothing if the rank
// reported an error itself, was told to end, or another rank of this host ended before.
//
// The witness also kills a rank that a signal has stopped, or that waits too long for others to
// start: a stopped rank runs no code, and the others may wait inside an MPI without deadlines.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/launcher.h"

namespace moebius {

// State of a rank, in memory shared with its witness. Written by comm.cpp at every wait.
struct Whereabouts {
  // kStarts: the ranks have not met yet; kSaid: the rank reported an error; kOver: the rank ended
  // properly.
  enum State : int { kStarts, kRuns, kSaid, kOver };
  std::atomic<uint64_t> step{0};
  std::atomic<const char*> phase{"starting"};  // always a string literal of this program
  std::atomic<int> layer{-1};
  std::atomic<int> state{kStarts};
};

// Returns text such as "step 812, layer 7, output of experts".
std::string words_of(uint64_t step, int layer, const char* phase);

class Witness {
 public:
  // Starts the witness. Call before threads are started and before the MPI is opened. If the system
  // refuses, there is no witness and only its message is missing. SIGTERM counts as "told to end"
  // from then on, whoever handles it. `timeout`: seconds after which a rank that is stopped, or
  // missing at the start, is killed.
  Witness(const Launcher& launcher, const std::string& host, double timeout);
  ~Witness();  // tells the witness that the rank ends properly
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  // Returns the memory in which the rank must write its state; null if there is no witness.
  Whereabouts* rank() { return seen_; }

 private:
  Whereabouts* seen_ = nullptr;
  int pipe_ = -1, child_ = -1;
};

}  // namespace moebius
