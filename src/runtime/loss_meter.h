// SPDX-License-Identifier: Apache-2.0
// Measures how much time of its core a thread lost to other programs.
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "runtime/roster.h"

namespace moebius {

inline int64_t now_ns() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

inline int64_t thread_cpu_ns() noexcept {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return t.tv_sec * 1'000'000'000ll + t.tv_nsec;
}

// Returns how many nanoseconds the calling thread was ready to run but had no core; -1 if the
// system does not tell.
inline int64_t thread_waited_ns() noexcept {
  const int fd = ::open("/proc/thread-self/schedstat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  char text[96];  // the file holds: time run, time waited, number of slices
  const ssize_t n = ::read(fd, text, sizeof text - 1);
  ::close(fd);
  text[std::max<ssize_t>(n, 0)] = 0;
  char* end = text;
  (void)std::strtoll(text, &end, 10);
  if (*end == ' ') return std::strtoll(end, nullptr, 10);
  return -1;
}

// Sums up the time that a thread waited for a core, also after being woken. If the system does not
// report it, the time counts that passed while the thread neither worked nor slept. Sums are taken
// over windows, so that the system is asked rarely. Used by its thread alone.
class LossMeter {
 public:
  void restart(int64_t now) noexcept {
    start_ = now;
    cpu_ = thread_cpu_ns();
    waited_ = thread_waited_ns();
    away_ = 0;
  }
  // Excludes `ns` during which the thread slept or worked for others.
  void away(int64_t ns) noexcept { away_ += ns; }
  // Ends the measurement of a region: returns the lost share of a full window, or a negative number
  // until the window is full.
  double close(int64_t now) noexcept {
    if (static_cast<double>(now - start_) < Roster::kWindow * 1e9) return -1;
    const int64_t wall = now - start_, worked = thread_cpu_ns() - cpu_;
    const int64_t waited = thread_waited_ns();
    const double lost = waited >= 0 && waited_ >= 0 ? static_cast<double>(waited - waited_)
                        : worked == 0               ? 0
                                                    : static_cast<double>(wall - worked - away_);
    restart(now);
    return std::max(0.0, lost / static_cast<double>(wall));
  }

 private:
  int64_t start_ = 0, cpu_ = 0, waited_ = -1, away_ = 0;
};

}  // namespace moebius
