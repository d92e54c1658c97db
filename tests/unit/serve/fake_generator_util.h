// SPDX-License-Identifier: Apache-2.0
// A generator that follows a script.
#pragma once
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "serve/generator.h"
#include "serve/token_text.h"

namespace moebius::test {

// Answers with what the script says, one token per choice and step.
class FakeGenerator final : public Generator {
 public:
  using Script = std::function<std::vector<int32_t>(const Request&, size_t choice)>;
  // Without a script an answer repeats its prompt.
  explicit FakeGenerator(const Tokenizer& tokenizer, size_t slots = 4, Script script = {});
  ~FakeGenerator() override;

  void start(Sink sink) override;
  void halt();  // no event comes any more
  uint64_t submit(Request request) override;
  void cancel(uint64_t id) override;
  bool waiting(uint64_t id) const override;
  bool dead() const override { return dead_; }
  GeneratorState state() const override;
  bool stop(std::chrono::milliseconds) override { return halt(), true; }

  std::atomic<int> pace_us{0};              // between steps
  std::atomic<bool> held{false};            // takes no step
  std::atomic<size_t> fail_at{0};           // every choice fails at its so many-th token
  std::string failure = "no finite logit";  // in these words
  std::atomic<bool> dies{false};            // the next step kills it
  std::atomic<bool> throws{false};          // whatever is asked of it on the event thread
  std::atomic<int> cancel_ms{0};            // that a cancel takes
  std::atomic<double> heartbeat{0};         // seconds that a step pretends to run
  std::atomic<uint64_t> busy_rows{4};       // of the last expert; the others have 1, 2 and 3
  std::atomic<size_t> most_running{0};
  std::atomic<size_t> tokens_made{0};
  std::atomic<size_t> cancelled{0};

 private:
  struct Choice {
    size_t index;
    std::vector<int32_t> tokens;
    ChoiceText text;
    size_t produced = 0;
    bool ended = false;
  };
  struct Job {
    uint64_t id;
    Request request;
    std::vector<Choice> choices;
  };
  void run();
  void step(std::vector<StepResult>& events);
  StepResult advance(const Job& job, Choice& choice);
  const Tokenizer& tokenizer_;
  size_t slots_;
  Script script_;
  Sink sink_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::unique_ptr<Job>> jobs_;
  uint64_t next_ = 1;
  bool ending_ = false;
  std::atomic<bool> dead_{false};
  std::thread thread_;
};

}  // namespace moebius::test
