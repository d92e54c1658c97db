// SPDX-License-Identifier: Apache-2.0
// Runs a TextEngine as a Generator: one thread runs its steps, and all results of a step are passed
// to the sink in one call.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "serve/generator.h"
#include "serve/step_turns.h"

namespace moebius {

struct EngineGeneratorOptions {
  size_t slots = 1;
  size_t experts = 0;    // per layer; 0: unknown
  double read_roof = 0;  // measured bytes per second; 0: not measured
  bool disk = false;     // true: the engine has a prompt cache on disk
  // Returns figures of all ranks; empty: there is one rank.
  std::function<std::vector<RankFigures>()> ranks;
  std::shared_ptr<StepTurns> turns;  // shared with other generators; null: none
  std::shared_ptr<void> weights;  // owner of what the engine points to; released with this object
};

class EngineGenerator final : public Generator {
 public:
  // Starts the thread at start(). The engine must outlive the generator.
  EngineGenerator(TextEngine& engine, EngineGeneratorOptions options);
  ~EngineGenerator() override;

  void start(Sink sink) override;
  uint64_t submit(Request request) override { return engine_.add(std::move(request)); }
  void cancel(uint64_t id) override { engine_.cancel(id); }
  bool waiting(uint64_t id) const override { return engine_.waiting(id); }
  bool dead() const override { return dead_; }
  GeneratorState state() const override;
  bool stop(std::chrono::milliseconds most) override;

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  bool wait();  // waits for work; false: there is no step to run
  void say(const char* failure) const noexcept;

  TextEngine& engine_;
  EngineGeneratorOptions options_;
  Sink sink_;
  std::atomic<int64_t> step_began_{
      0};  // when the running step began (Clock); 0: no step is running
  std::atomic<double> step_seconds_{0};
  // Guards the idle time between steps.
  mutable std::mutex mutex_;
  Clock::duration idle_{0};
  std::optional<Clock::time_point> idle_since_;
  std::atomic<bool> ending_{false}, ended_{false}, dead_{false};
  std::thread thread_;
};

}  // namespace moebius
