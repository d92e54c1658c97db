// SPDX-License-Identifier: Apache-2.0
// The engine as a generator: one thread runs its steps; what a step brought goes to the sink in one
// piece. Tokens become text where they are sampled, because a stop string decides who goes on.
#pragma once
#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "model/engine.h"
#include "model/ranks.h"
#include "serve/generator.h"
#include "serve/token_text.h"

namespace moebius {

struct EngineGeneratorOptions {
  size_t slots = 1;
  size_t experts = 0;        // per layer; 0: not known
  double read_roof = 0;      // bytes per second
  std::vector<int32_t> eos;  // tokens that are not worth a word when they end an answer
  std::function<std::vector<RankFigures>()> ranks;  // empty: one rank
};

class EngineGenerator final : public Generator {
 public:
  // Both must live longer.
  EngineGenerator(Engine& engine, const Tokenizer& tokenizer, EngineGeneratorOptions options);
  ~EngineGenerator() override;

  void start(Sink sink) override;
  uint64_t submit(GenerationRequest request) override;
  void cancel(uint64_t id) override;
  bool waiting(uint64_t id) const override;
  bool dead() const override { return dead_; }
  GeneratorStats stats() const override;
  // Waits for the thread to end; false: it is stuck in a step.
  bool stop(std::chrono::milliseconds most);

 private:
  using Clock = std::chrono::steady_clock;
  struct Job;
  void run();
  bool wait();  // false: there is no step to run
  void report(StepReport& report);
  GenerationEvent event_of(Job& job, StepResult& result) const;

  Engine& engine_;
  const Tokenizer& tokenizer_;
  EngineGeneratorOptions options_;
  Sink sink_;
  mutable std::mutex mutex_;  // of the jobs
  std::unordered_map<uint64_t, std::shared_ptr<Job>> jobs_;
  std::atomic<int64_t> step_began_{0};  // Clock; 0: none runs
  std::atomic<double> step_seconds_{0};
  // Between steps; both under the mutex.
  Clock::duration idle_{0};
  std::optional<Clock::time_point> idle_since_;
  std::atomic<bool> ending_{false}, ended_{false}, dead_{false};
  std::thread thread_;
};

}  // namespace moebius
