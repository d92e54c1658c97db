// SPDX-License-Identifier: Apache-2.0
// Work that is done once, by the first thread that needs it. Unlike std::call_once it lets exceptions
// pass no frame of the C library, which would load its unwinder then, and end the process where there
// is no memory to load it.
#pragma once
#include <atomic>
#include <mutex>

namespace moebius {

class Once {
 public:
  // Runs `work` unless it has been done; where it throws, the next call tries again. Thread-safe.
  template <class Work>
  void call(Work&& work) {
    if (done_.load(std::memory_order_acquire)) return;
    const std::lock_guard lock(mutex_);
    if (done_.load(std::memory_order_relaxed)) return;
    work();
    done_.store(true, std::memory_order_release);
  }

 private:
  std::mutex mutex_;
  std::atomic<bool> done_{false};
};

}  // namespace moebius
