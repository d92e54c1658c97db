// SPDX-License-Identifier: Apache-2.0
// Base of answers that consist of consecutive blocks: reasoning, text, or a call. Derived classes
// write what opens, extends and closes a block.
#pragma once
#include "serve/answer.h"

namespace moebius {

class BlockAnswer : public InterfaceAnswer {
 public:
  bool complete() const override { return ended_; }
  std::string take(size_t prompt, const StepResult& event) final;
  std::string stream_end() final { return {}; }  // the last event wrote the end already

 protected:
  struct Block {
    enum class Kind : uint8_t { kReasoning, kText, kCall };
    Kind kind;
    std::string id, call_id, name, text;  // text: text of the block; of a call, its arguments
    bool whole = true;                    // for a call: false: it was cut off
    std::string logprobs = {};            // for a text: entries of a JSON list, if requested
  };
  explicit BlockAnswer(const AnswerInput& in);

  // Return parts of the stream; called for streams only.
  virtual std::string began() = 0;
  virtual std::string opened(const Block& block) = 0;
  // `logprobs`: entries for the tokens since the last text.
  virtual std::string grown(const Block& block, const std::string& text,
                            const std::string& logprobs) = 0;
  virtual std::string closed(const Block& block) = 0;
  virtual std::string ended() = 0;
  virtual Block make_block(Block::Kind kind, const AnswerEvent* call) = 0;

  size_t index() const { return blocks_.size() - 1; }
  // Returns true if the context was full before the answer reached its longest length.
  bool context_full() const { return end_ == "length" && fills_context_; }

  const ServedModel& model_;
  const int64_t seconds_;
  std::vector<Block> blocks_;
  std::string_view end_;   // why the answer ended, as finish_word() says
  std::string stop_text_;  // text that ended it; empty: none did

 private:
  std::string add(const AnswerEvent& part);
  // Closes the open block and opens one of this kind.
  std::string next(Block::Kind kind, const AnswerEvent* call);
  std::string grow(const std::string& text);
  std::string close();
  void keep_logprobs(const StepResult& event);
  std::string take_logprobs();
  const bool stream_, show_reasoning_;
  std::optional<LogprobLists> logprobs_;  // log-probabilities of tokens whose text has not come yet
  std::vector<int32_t> stop_tokens_;
  bool fills_context_ = false, begun_ = false, ended_ = false, open_ = false;
};

std::unique_ptr<InterfaceAnswer> make_messages_answer(const AnswerInput& in);
std::unique_ptr<InterfaceAnswer> make_responses_answer(const AnswerInput& in);

}  // namespace moebius
