// SPDX-License-Identifier: Apache-2.0
// Lets engines that share a pool of threads take turns, step by step, in the order of asking: an
// engine waits for at most one step of each other, and the time of a step is its own.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace moebius {

class StepTurns {
 public:
  // One engine's turn: waits for it when made, and ends it when destroyed. null: there is no other
  // engine.
  class Turn {
   public:
    explicit Turn(StepTurns* turns) : turns_(turns) {
      if (turns_ != nullptr) turns_->begin();
    }
    ~Turn() {
      if (turns_ != nullptr) turns_->end();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    StepTurns* turns_;
  };

 private:
  void begin() {
    std::unique_lock lock(mutex_);
    const uint64_t mine = asked_++;
    changed_.wait(lock, [&] { return mine == now_; });
  }
  void end() {
    {
      const std::lock_guard lock(mutex_);
      ++now_;
    }
    changed_.notify_all();
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t asked_ = 0, now_ = 0;
};

}  // namespace moebius
