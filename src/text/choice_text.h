// SPDX-License-Identifier: Apache-2.0
// Turns the tokens of an answer into text as they arrive: whole characters, split into reasoning,
// content and calls if there are rules for it. Content that may begin a stop string is held back.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "text/answer/splitter.h"
#include "text/stop.h"
#include "text/tokenizer.h"

namespace moebius {

class Grammar;

struct TextRules {
  std::vector<std::string> stops;
  bool include_stop = false, skip_special = true;
  size_t min_new = 0;  // number of tokens before stop strings are recognised
  // Rules that split the answer; null: everything is content.
  std::shared_ptr<const AnswerRules> answer = nullptr;
  // Grammar that constrains the answer; null: any text.
  std::shared_ptr<const Grammar> grammar = nullptr;
  // Most tokens of reasoning, after which reasoning is ended; unset: no limit.
  std::optional<size_t> thinking_budget = std::nullopt;
  std::vector<int32_t> end_tokens = {};  // tokens that may come only where the grammar may end
};

class ChoiceText {
 public:
  // The tokenizer must outlive the object.
  ChoiceText(const Tokenizer& tokenizer, const TextRules& rules);
  std::string push(int32_t token);  // returns content that can be passed on
  // Ends the answer and returns what was held back. `cut`: the model did not end it itself.
  std::string finish(bool cut);
  // Returns events since the last call, content included; empty without rules.
  AnswerEvents take_events() { return std::exchange(events_, {}); }
  size_t reasoning_tokens() const { return reasoning_tokens_; }
  // Returns true if the next token is reasoning.
  bool reasoning() const { return splitter_ && splitter_->reasoning(); }
  bool stopped() const { return stop_.stopped() || (splitter_ && splitter_->stopped()); }
  // Returns the stop string that was found; empty: none.
  const std::string& stop() const { return stop_.found(); }

 private:
  std::string decoded(int32_t token);
  std::string pass(const AnswerEvents& events);
  std::string pass_content(const std::string& text);
  std::string release_content();
  std::string show(std::string content);

  const Tokenizer& tokenizer_;
  std::shared_ptr<const AnswerRules> answer_;
  Tokenizer::Stream stream_;
  std::optional<AnswerSplitter> splitter_;
  std::vector<std::string> stops_;
  StopMatcher stop_;
  AnswerEvents events_;
  size_t min_new_, seen_ = 0, reasoning_tokens_ = 0;
  bool include_stop_, skip_special_;
};

}  // namespace moebius
