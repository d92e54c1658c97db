// SPDX-License-Identifier: Apache-2.0
// The engine as a generator: one thread runs its steps; what a step brought goes to the sink in one
// piece.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>

#include "engine/text_engine.h"
#include "model/ranks.h"
#include "serve/generator.h"
#include "serve/step_turns.h"

namespace moebius {

struct EngineGeneratorOptions {
  size_t slots = 1;
  size_t experts = 0;        // per layer; 0: not known
  double read_roof = 0;      // bytes per second
  bool disk = false;         // the engine keeps prompts on disk
  std::vector<int32_t> eos;  // tokens that are not worth a word when they end an answer
  std::function<std::vector<RankFigures>()> ranks;  // empty: one rank
  std::shared_ptr<StepTurns> turns;                 // with other generators; null: it is alone
  std::shared_ptr<void> weights;                    // what the engine points to: goes with this
};

class EngineGenerator final : public Generator {
 public:
  EngineGenerator(TextEngine& engine, EngineGeneratorOptions options);  // must live longer
  ~EngineGenerator() override;

  void start(Sink sink) override;
  uint64_t submit(GenerationRequest request) override;
  void cancel(uint64_t id) override { engine_.cancel(id); }
  bool waiting(uint64_t id) const override { return engine_.waiting(id); }
  bool dead() const override { return dead_; }
  GeneratorStats stats() const override;
  bool stop(std::chrono::milliseconds most) override;

 private:
  using Clock = std::chrono::steady_clock;
  void run();
  bool wait();  // false: there is no step to run
  void say(const char* failure) const noexcept;
  void report(const TextStep& step);
  GenerationEvent event_of(const TextEvent& event) const;

  TextEngine& engine_;
  EngineGeneratorOptions options_;
  Sink sink_;
  std::atomic<int64_t> step_began_{0};  // Clock; 0: none runs
  std::atomic<double> step_seconds_{0};
  // Between steps; both under the mutex.
  mutable std::mutex mutex_;
  Clock::duration idle_{0};
  std::optional<Clock::time_point> idle_since_;
  std::atomic<bool> ending_{false}, ended_{false}, dead_{false};
  std::thread thread_;
};

}  // namespace moebius
