// SPDX-License-Identifier: Apache-2.0
// The engine with text, for whoever talks to people. Tokens become text where they are sampled,
// because a stop string decides who goes on.
//
// A failed step harms nobody: the engine has rolled back, so the next step tries again. After some
// failures in a row the youngest request ends with an error where memory was short, and the others go
// on; else, or when the backend is lost, every request ends with the reason in words, and no step runs
// any more (docs/engine.md).
#pragma once
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/once.h"
#include "engine/engine.h"
#include "text/choice_text.h"
#include "text/grammar/masks.h"

namespace moebius {

// What a step brought for one answer.
struct TextEvent : StepResult {
  std::string text;             // content that can no longer change, in whole characters
  AnswerEvents parts;           // the same and all else, where the rules say how to split it
  size_t reasoning_tokens = 0;  // so far
  std::string stop_text;        // that ended it
  double queue_seconds = 0;     // from add until it ran
};

struct TextStep {
  std::vector<TextEvent> events;
  StepFigures figures;
  std::string failure;  // not empty: the step failed, in words
};

// Holds one answer to its grammar; end tokens may come exactly where it may end.
std::unique_ptr<TokenConstraint> make_grammar_constraint(std::shared_ptr<TokenMasks> masks,
                                                         GrammarPtr grammar,
                                                         std::vector<int32_t> end_tokens);

class TextEngine {
 public:
  static constexpr size_t kMostFailures = 5;  // in a row

  // Both must live longer. Without a tokenizer (null) there are tokens and no text; with one, only
  // its tokens are produced.
  TextEngine(Backend& backend, const Tokenizer* tokenizer, EngineOptions options);

  // From any thread, as Engine's. The request's `watch` and `admitted` are used here, and
  // rules.min_new is the sampling's.
  uint64_t add(Request request, TextRules rules);
  void cancel(uint64_t id) noexcept;
  bool waiting(uint64_t id) const;  // has not run yet
  bool idle() const { return dead() || engine_.idle(); }
  bool dead() const { return dead_; }

  TextStep step();  // calls take turns

  // The vocabulary as grammars see it: made when it is first asked for, which takes a while.
  const std::shared_ptr<TokenMasks>& masks();

  Engine& engine() { return engine_; }
  const Engine& engine() const { return engine_; }

 private:
  struct Job;
  static TextEvent event_of(Job& job, StepResult& result);
  void take(StepReport& report, TextStep& out);
  void end_youngest(TextStep& out, const std::string& why);
  void give_up(TextStep& out, const std::string& why);

  const Tokenizer* tokenizer_;
  Engine engine_;
  Once masks_once_;
  std::shared_ptr<TokenMasks> masks_;
  std::mutex step_mutex_;
  size_t failures_ = 0;            // in a row; the step's
  mutable std::mutex jobs_mutex_;  // of what follows
  std::map<uint64_t, std::shared_ptr<Job>> jobs_;
  std::string why_dead_;
  std::atomic<bool> dead_{false};
};

}  // namespace moebius
