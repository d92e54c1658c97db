// SPDX-License-Identifier: Apache-2.0
// A device for tests that stands in for another machine: operations are queued and run by a thread of
// its own, and its rows and blocks lie in pages that nobody can touch while none of them runs. It
// fails on demand. Names: "guarded", and "slow" where every operation takes its time, with a number
// behind them where there are several. Programs that are linked with it have these devices
// (device/stand_ins.h); the tool and the library do not.
#pragma once
#include <atomic>
#include <memory>
#include <string_view>

#include "device/cpu/executor.h"

namespace moebius {

std::unique_ptr<Executor> make_guarded(std::string_view name);

// Of all guarded devices of the process. Counts go down with every operation or allocation; at 0 it
// fails. Negative: never.
struct GuardedFaults {
  std::atomic<long> operation{-1};            // throws
  std::atomic<long> allocation{-1};           // has no memory
  std::atomic<long> loss{-1};                 // nothing runs any more
  std::atomic<long> slow_microseconds{2000};  // that an operation of "slow" takes at least
};
GuardedFaults& guarded_faults();

}  // namespace moebius
