// SPDX-License-Identifier: Apache-2.0
// Splits the text of an answer into events: reasoning, content, tool calls. Only text that may
// begin a marker is held back; markers are not passed on, except those of an unreadable call. The
// events do not depend on how text is divided over calls.
//
//   reasoning* reasoning_end? (content | call_begin call_arguments* call_end)*
//
// (GPT-OSS may reason again after content.)
#pragma once
#include <memory>
#include <string_view>

#include "text/answer/events.h"
#include "text/answer/tool_format.h"

namespace moebius {

class AnswerReader;
class AnswerWriter;

class AnswerSplitter {
 public:
  explicit AnswerSplitter(std::shared_ptr<const AnswerRules> rules);
  AnswerSplitter(AnswerSplitter&&) noexcept = default;
  AnswerSplitter& operator=(AnswerSplitter&&) noexcept = default;

  void push(std::string_view text, AnswerEvents& out);
  // Ends the answer. `cut`: the model did not end it itself, so unfinished parts stay unfinished.
  void finish(bool cut, AnswerEvents& out);
  bool reasoning() const;  // true: the next text is reasoning
  bool stopped() const;    // true: no more text is wanted

 private:
  std::shared_ptr<const AnswerRules> rules_;
  std::shared_ptr<AnswerWriter> writer_;
  std::shared_ptr<AnswerReader> reader_;
};

}  // namespace moebius
