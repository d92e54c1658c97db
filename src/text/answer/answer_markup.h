// SPDX-License-Identifier: Apache-2.0
// How a model's answers are read: recognised from its templates, or named by hand.
#pragma once
#include <string_view>

#include "text/answer/tool_format.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moebius {

struct AnswerMarkup {
  const ToolFormat* tools = nullptr;           // null: calls are not read
  const ReasoningFormat* reasoning = nullptr;  // null: reasoning is content
  std::shared_ptr<const std::vector<int32_t>> marker_tokens;
  std::vector<int32_t> stop_tokens;  // that end an answer in this format

  // Rules for an answer behind this prompt; null: all of it is content.
  std::shared_ptr<AnswerRules> rules(std::shared_ptr<const ToolSet> tool_set,
                                     std::string_view prompt) const;
};

// "auto", "none", or a name of the tables. Throws Error.
const ToolFormat* choose_tool_format(const ChatTemplates& templates, std::string_view name);
AnswerMarkup choose_answer_markup(const ChatTemplates& templates, const Tokenizer& tokenizer,
                                  std::string_view tools = "auto",
                                  std::string_view reasoning = "auto");

}  // namespace moebius
