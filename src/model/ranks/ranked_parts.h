// SPDX-License-Identifier: Apache-2.0
// Holds the inner classes of RankedBackend. Only ranked_*.cpp include it.
#pragma once
#include <condition_variable>
#include <mutex>
#include <thread>

#include "model/ranks/ranked_backend.h"

namespace moebius {

// Collects the numbers of sequences whose memory the other ranks may free; it may outlive the
// model, as sequences do.
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

// Holds the parts of a step, and where its rows return.
struct RankedBackend::Staged {
  std::vector<std::unique_ptr<Pass>> passes;
  std::vector<std::shared_ptr<Ranks::Arrival>> arrivals;  // [pass] in the first stage
  // The plan that the passes refer to, or null.
  std::shared_ptr<const StepPlan> plan;
};

struct RankedBackend::Figures {
  std::mutex mutex;  // guards `all`, so that readers do not wait for a step
  std::vector<RankFigures> all;
  RankFigures mine;
};

// Calls beat() repeatedly on a thread of its own.
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
