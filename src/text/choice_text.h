// SPDX-License-Identifier: Apache-2.0
// The text of an answer as its tokens come: whole characters, split into reasoning, content and
// calls where the rules say how, and content held back while it may begin a stop string.
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
  size_t min_new = 0;                                    // tokens before a stop string counts
  std::shared_ptr<const AnswerRules> answer = nullptr;   // null: all is content
  std::shared_ptr<const Grammar> grammar = nullptr;      // of the answer; null: any text
  std::optional<size_t> thinking_budget = std::nullopt;  // tokens of reasoning, then it is ended
  std::vector<int32_t> end_tokens = {};  // may come exactly where the grammar may end
};

class ChoiceText {
 public:
  ChoiceText(const Tokenizer& tokenizer, const TextRules& rules);  // the tokenizer must live longer
  std::string push(int32_t token);                                 // content
  // What was held back. `cut`: the answer had no end of its own.
  std::string finish(bool cut);
  // Where there are rules for it: what came since the last call, content as well.
  AnswerEvents take_events() { return std::exchange(events_, {}); }
  size_t reasoning_tokens() const { return reasoning_tokens_; }
  bool reasoning() const { return splitter_ && splitter_->reasoning(); }  // the next token is
  bool stopped() const { return stop_.stopped() || (splitter_ && splitter_->stopped()); }
  const std::string& stop() const { return stop_.found(); }  // empty: no stop string

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
