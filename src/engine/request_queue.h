// SPDX-License-Identifier: Apache-2.0
// Hands new sequences and cancellations from any thread to the engine's thread. Thread-safe.
#pragma once
#include <condition_variable>

#include "engine/sequence.h"

namespace moebius {

class RequestQueue {
 public:
  // Queues the answers of one request and returns their id.
  uint64_t add(Sequences answers);
  void cancel(uint64_t id) noexcept;
  // Waits until some sequence has not ended, but at most `most`; returns whether there is one.
  // wake() ends the wait early.
  bool wait(std::chrono::nanoseconds most);
  void wake();
  bool idle() const { return live_.load() == 0; }
  size_t prompt_left() const;

  // Appends all queued sequences to `to` and returns the ids that were cancelled since the last
  // call. Changes nothing if it throws.
  std::vector<uint64_t> take(Sequences& to);
  void ended() noexcept { --live_; }  // a sequence that was taken has ended

 private:
  mutable std::mutex mutex_;
  std::condition_variable filled_;
  Sequences inbox_;
  std::vector<uint64_t> cancels_;
  bool woken_ = false;
  uint64_t next_id_ = 1;
  std::atomic<size_t> live_{0};
};

}  // namespace moebius
