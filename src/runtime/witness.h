// SPDX-License-Identifier: Apache-2.0
// A rank that is killed says nothing, and not every launcher names it. So each rank process has a
// witness: a small process, started before anything else, that sees the rank's end and says where it
// was. It leaves with the rank, and says nothing where the rank said why itself, was told to end, or
// another rank of this host was gone before.
//
// It also ends a rank that a signal has stopped, and one that waits too long for others to start: in
// both cases nobody else could, since the stopped one runs no code and the others may wait inside an
// MPI that knows no deadline.
#pragma once
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "runtime/launcher.h"

namespace moebius {

// Where a rank is, in memory that its witness sees. Written by whoever waits (comm.cpp).
struct Whereabouts {
  enum State : int { kStarts, kRuns, kSaid, kOver };  // kStarts: the ranks have not met yet
  std::atomic<uint64_t> step{0};
  std::atomic<const char*> phase{"starting"};  // a string literal of the program
  std::atomic<int> layer{-1};
  std::atomic<int> state{kStarts};
};

// "step 812, layer 7, output of experts"
std::string words_of(uint64_t step, int layer, const char* phase);

class Witness {
 public:
  // Before threads are started, and before the MPI is. Where the system refuses there is none, and
  // only the sentence is missing. SIGTERM then counts as told to end, whoever handles it. `timeout`:
  // seconds after which a rank that is stopped, or missing at the start, is given up.
  Witness(const Launcher& launcher, const std::string& host, double timeout);
  ~Witness();  // the rank ends as it should
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  Whereabouts* rank() { return seen_; }  // null: nobody looks

 private:
  Whereabouts* seen_ = nullptr;
  int pipe_ = -1, child_ = -1;
};

}  // namespace moebius
