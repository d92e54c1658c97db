// SPDX-License-Identifier: Apache-2.0
// Runs work once, by the first thread that needs it. Unlike std::call_once, exceptions cross no
// frame of the C library, which would have to load its unwinder then, and would end the process if
// there is no memory for that.
#pragma once
#include <atomic>
#include <mutex>

namespace moebius {

class Once {
 public:
  // Runs `work` unless an earlier call completed it; other callers wait meanwhile. If `work`
  // throws, the next call runs it again. Thread-safe.
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
