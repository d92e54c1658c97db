// SPDX-License-Identifier: Apache-2.0
// A generator that releases its weights after a time without requests, and loads them with the next
// request. Requests wait meanwhile; if loading fails they end with the reason, and the next request
// tries again. A generator that died is replaced in the same way. Counters continue.
#pragma once
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "serve/generator.h"

namespace moebius {

struct WakingOptions {
  // Time without requests after which weights are released; 0: only if the generator died.
  std::chrono::milliseconds sleep_after{0};
  std::function<std::unique_ptr<Generator>()> load;        // loads the weights; throws Error
  std::function<void(std::unique_ptr<Generator>)> unload;  // frees everything that `load` made
  // Receives lines for the log; called from any thread.
  std::function<void(const std::string& words)> say;
};

class WakingGenerator final : public Generator {
 public:
  // Starts awake, with a loaded generator.
  WakingGenerator(std::unique_ptr<Generator> awake, WakingOptions options);
  ~WakingGenerator() override;

  void start(Sink sink) override;
  uint64_t submit(Request request) override;
  void cancel(uint64_t id) override;
  bool waiting(uint64_t id) const override;
  bool dead() const override { return false; }
  GeneratorState state() const override;
  bool stop(std::chrono::milliseconds most) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    uint64_t inner = 0;  // its id at the generator; 0: not submitted yet
    size_t open = 0;     // choices that have not ended
    Request request;
  };
  void run();
  void fall_asleep(std::unique_lock<std::mutex>& lock);
  void wake_up(std::unique_lock<std::mutex>& lock);
  void pass_on(TextStep step);
  static void fail(uint64_t id, const Job& job, const std::string& words,
                   std::vector<StepResult>& events);

  const WakingOptions options_;
  Sink sink_;
  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  std::unique_ptr<Generator> awake_;       // the inner generator; null: asleep
  std::map<uint64_t, Job> jobs_;           // jobs by the id that this object gave out
  std::map<uint64_t, uint64_t> by_inner_;  // that id, by the inner generator's
  uint64_t next_ = 1, loads_ = 1;
  bool loading_ = false, ending_ = false, ended_ = false, broken_ = false;
  Clock::time_point idle_since_ = Clock::now();
  GeneratorState before_;  // counters of generators that were released
  std::thread thread_;
};

// Adds the counters of `more`; other members stay.
void add_counters(GeneratorState& to, const GeneratorState& more);

}  // namespace moebius
