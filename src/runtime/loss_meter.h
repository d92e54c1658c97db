// SPDX-License-Identifier: Apache-2.0
// How much of its core a thread lost to other programs.
#pragma once
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "runtime/roster.h"

namespace moebius {

inline int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline int64_t thread_cpu_ns() noexcept {
#if defined(CLOCK_THREAD_CPUTIME_ID)
  timespec t{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t) == 0)
    return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
#endif
  return 0;
}

// What a thread lost to others: time that passed and was neither worked nor slept. Summed up over
// windows, so that the clock of the thread (a system call) is read rarely.
class LossMeter {
 public:
  void restart(int64_t now) noexcept { start_ = now, cpu_ = thread_cpu_ns(), away_ = 0; }
  void away(int64_t ns) noexcept { away_ += ns; }  // asleep, or not ours to judge
  // After a region; a negative number unless a window is full.
  double close(int64_t now) noexcept {
    if (static_cast<double>(now - start_) < Roster::kWindow * 1e9) return -1;
    const int64_t wall = now - start_, worked = thread_cpu_ns() - cpu_;
    const double lost = worked == 0 ? 0 : static_cast<double>(wall - worked - away_);
    restart(now);
    return std::max(0.0, lost / static_cast<double>(wall));
  }

 private:
  int64_t start_ = 0, cpu_ = 0, away_ = 0;
};

}  // namespace moebius
