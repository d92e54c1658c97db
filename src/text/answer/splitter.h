// SPDX-License-Identifier: Apache-2.0
// The text of an answer to its events: reasoning, content, calls of tools. Text that may begin a
// marker waits, never more; markers reach nobody, but for those of a call that cannot be read. How
// the text is cut changes nothing: joined, the events are the same.
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
  ~AnswerSplitter();
  AnswerSplitter(AnswerSplitter&&) noexcept;
  AnswerSplitter& operator=(AnswerSplitter&&) noexcept;

  void push(std::string_view text, AnswerEvents& out);
  // `cut`: the answer had no end of its own, so what is unfinished stays so.
  void finish(bool cut, AnswerEvents& out);
  bool reasoning() const;  // the next text is
  bool stopped() const;    // nothing more is wanted

 private:
  std::shared_ptr<const AnswerRules> rules_;
  std::unique_ptr<AnswerWriter> writer_;
  std::unique_ptr<AnswerReader> reader_;
};

}  // namespace moebius
