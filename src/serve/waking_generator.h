// SPDX-License-Identifier: Apache-2.0
// A generator whose weights go when nobody has asked for a while, and come back with the next request.
// Requests wait meanwhile; where the weights cannot be loaded these end with the reason in words, and
// the next one tries again. A generator that died is let go of in the same way. Counters go on.
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
  std::chrono::milliseconds sleep_after{0};                // 0: only where it died
  std::function<std::unique_ptr<Generator>()> load;        // throws Error
  std::function<void(std::unique_ptr<Generator>)> unload;  // gives all of it back
  std::function<void(const std::string& words)> say;       // for the log; from any thread
};

class WakingGenerator final : public Generator {
 public:
  // Begins with one that is loaded.
  WakingGenerator(std::unique_ptr<Generator> awake, WakingOptions options);
  ~WakingGenerator() override;

  void start(Sink sink) override;
  uint64_t submit(GenerationRequest request) override;
  void cancel(uint64_t id) override;
  bool waiting(uint64_t id) const override;
  bool dead() const override { return false; }
  GeneratorStats stats() const override;
  bool stop(std::chrono::milliseconds most) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Job {
    uint64_t inner = 0;  // its number at the generator; 0: it waits for one
    size_t open = 0;     // choices that have not ended
    GenerationRequest request;
  };
  void run();
  void fall_asleep(std::unique_lock<std::mutex>& lock);
  void wake_up(std::unique_lock<std::mutex>& lock);
  void pass_on(std::vector<GenerationEvent> events, StepSummary step);
  static void fail(uint64_t id, const Job& job, const std::string& words,
                   std::vector<GenerationEvent>& events);

  const WakingOptions options_;
  Sink sink_;
  mutable std::mutex mutex_;  // of what follows
  std::condition_variable changed_;
  std::unique_ptr<Generator> awake_;       // null: asleep
  std::map<uint64_t, Job> jobs_;           // by our number
  std::map<uint64_t, uint64_t> by_inner_;  // ours by the generator's
  uint64_t next_ = 1, loads_ = 1;
  bool loading_ = false, ending_ = false, ended_ = false, broken_ = false;
  Clock::time_point idle_since_ = Clock::now();
  GeneratorStats before_;  // counters of those that went
  std::thread thread_;
};

// Adds the counters of one to another's; everything else stays.
void add_counters(GeneratorStats& to, const GeneratorStats& more);

}  // namespace moebius
