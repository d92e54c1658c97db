// SPDX-License-Identifier: Apache-2.0
// Inside of RankedBackend. Included by ranked_*.cpp only.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "model/ranks/ranked_backend.h"

namespace moebius {

// Numbers of sequences whose memory the other ranks may drop; sequences can outlive the model.
class RankedBackend::Ended {
 public:
  void add(uint64_t id) {
    const std::lock_guard lock(mutex_);
    ids_.push_back(id);
  }
  std::vector<uint64_t> take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(ids_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<uint64_t> ids_;
};

// What a step is made of, and where its rows come back to.
struct RankedBackend::Staged {
  std::vector<std::unique_ptr<Pass>> passes;
  std::vector<std::shared_ptr<Ranks::Arrival>> arrivals;  // of the passes, in the first stage
  std::shared_ptr<const StepPlan> plan;                   // what the passes point into, or null
};

struct RankedBackend::Figures {
  std::mutex mutex;  // of `all`: who looks at it does not wait for a step
  std::vector<RankFigures> all;
  RankFigures mine;
};

// Calls beat() on a thread of its own, again and again.
class RankedBackend::Beats {
 public:
  Beats(double seconds, std::function<void()> beat)
      : thread_([this, seconds, beat = std::move(beat)] {
          std::unique_lock lock(mutex_);
          while (!changed_.wait_for(lock, std::chrono::duration<double>(seconds),
                                    [&] { return over_; }))
            beat();
        }) {}
  ~Beats() {
    {
      const std::lock_guard lock(mutex_);
      over_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }
  Beats(const Beats&) = delete;
  Beats& operator=(const Beats&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = false;
  std::thread thread_;
};

}  // namespace moebius
