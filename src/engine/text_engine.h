// SPDX-License-Identifier: Apache-2.0
// An Engine whose results are text. Tokens become text where they are sampled, because a stop
// string ends its sequence at once.
//
// A failed step is rolled back, and the next step tries again. After several failures in a row, the
// youngest request ends with an error if memory was short, and the others go on; otherwise, or if
// the backend is lost, every request ends with the reason and no step runs any more
// (docs/engine.md).
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/once.h"
#include "engine/engine.h"
#include "text/grammar/masks.h"

namespace moebius {

struct TextStep {
  std::vector<StepResult> events;
  StepFigures figures;
  std::string failure;  // not empty: the step failed for this reason
  bool last = false;    // true: no step follows, because the engine gave up
};

// Returns a constraint that restricts an answer to a grammar; an end token may come exactly where
// the grammar may end.
std::unique_ptr<TokenConstraint> make_grammar_constraint(std::shared_ptr<TokenMasks> masks,
                                                         GrammarPtr grammar,
                                                         std::vector<int32_t> end_tokens);

class TextEngine {
 public:
  static constexpr size_t kMostFailures = 5;  // failed steps in a row until requests end

  // Backend and tokenizer must outlive the engine. A null tokenizer gives tokens and no text;
  // otherwise only the tokenizer's tokens are produced.
  TextEngine(Backend& backend, const Tokenizer* tokenizer, EngineOptions options);

  // Queue and end requests, as in Engine; thread-safe. TextEngine sets the request's `watch` and
  // `admitted` itself, and takes rules.min_new from the sampling parameters.
  uint64_t add(Request request);
  void cancel(uint64_t id) noexcept;
  bool waiting(uint64_t id) const;  // returns true if the request has not run yet; thread-safe
  bool idle() const { return dead() || engine_.idle(); }
  bool dead() const { return dead_; }

  TextStep step();  // runs one step; callers take turns

  // Returns the vocabulary for grammars. The first call builds it, which takes a while.
  const std::shared_ptr<TokenMasks>& masks();

  Engine& engine() { return engine_; }
  const Engine& engine() const { return engine_; }

 private:
  struct Job;
  static void add_text(Job& job, StepResult& event);
  void take(StepReport& report, TextStep& out);
  void end_youngest(TextStep& out, const std::string& why);
  void give_up(TextStep& out, const std::string& why);

  const Tokenizer* tokenizer_;
  Engine engine_;
  Once masks_once_;
  std::shared_ptr<TokenMasks> masks_;
  std::mutex step_mutex_;
  size_t failures_ = 0;            // failed steps in a row; used by step() alone
  mutable std::mutex jobs_mutex_;  // guards the fields below
  std::map<uint64_t, std::shared_ptr<Job>> jobs_;
  std::string why_dead_;
  std::atomic<bool> dead_{false};
};

}  // namespace moebius
