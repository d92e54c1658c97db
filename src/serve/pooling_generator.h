// SPDX-License-Identifier: Apache-2.0
// Runs a model that returns vectors or scores as a Generator: the event of a request holds one
// vector or score, and no token. Waiting texts share steps; results do not depend on the other
// texts.
#pragma once
#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "model/run/decoder.h"
#include "model/run/pooling.h"
#include "serve/generator.h"
#include "serve/step_turns.h"

namespace moebius {

struct PoolingGeneratorOptions {
  size_t slots = 1;       // number of texts that share steps
  uint64_t kv_bytes = 0;  // memory for keys and values of all texts; a single text may use more
  size_t row = 0;         // numbers that the model returns per token
  std::shared_ptr<StepTurns> turns;  // shared with other generators; null: none
  // Owner of what the generator points to; released with this object.
  std::shared_ptr<void> weights;
};

class PoolingGenerator final : public Generator {
 public:
  PoolingGenerator(DecoderModel& model, const PoolingPlan& plan, PoolingGeneratorOptions options);
  ~PoolingGenerator() override;

  void start(Sink sink) override;
  uint64_t submit(Request request) override;
  void cancel(uint64_t id) override;
  bool waiting(uint64_t id) const override;
  bool dead() const override { return false; }
  GeneratorState state() const override;
  bool stop(std::chrono::milliseconds most) override;

 private:
  using Clock = std::chrono::steady_clock;
  struct Text {
    uint64_t id;
    std::vector<int32_t> tokens;
    SequenceState state;
    Pooler pooler;
    uint64_t kv;  // bytes of the text's keys and values
    Clock::time_point came, ran;
  };
  struct Waiting {
    uint64_t id;
    Request request;
    Clock::time_point came;
  };
  void run();
  void admit();
  void step();
  void forget_cancelled();
  void tell(TextStep step);
  void give_up(const char* why);  // ends every text that was accepted and not reported

  DecoderModel& model_;
  const PoolingPlan& plan_;
  const PoolingGeneratorOptions options_;
  Sink sink_;
  std::deque<std::unique_ptr<Text>> running_;  // texts that run; used by the thread alone
  std::set<uint64_t> untold_;  // accepted texts whose event was not sent; used by the thread alone

  mutable std::mutex mutex_;  // guards the fields below
  std::condition_variable changed_;
  std::deque<Waiting> waiting_;
  std::set<uint64_t> live_, cancelled_;
  uint64_t next_ = 1, tokens_ = 0, steps_ = 0, weight_bytes_ = 0;
  Clock::time_point step_began_{};
  double step_seconds_ = 0;
  bool ending_ = false, ended_ = false, in_step_ = false;
  std::thread thread_;
};

}  // namespace moebius
