// SPDX-License-Identifier: Apache-2.0
// Finds the formats in which a model writes tool calls and reasoning: recognised from its chat
// templates, or chosen by name.
#pragma once
#include <string_view>

#include "text/answer/tool_format.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace moebius {

struct AnswerMarkup {
  const ToolFormat* tools = nullptr;           // format of tool calls; null: they stay content
  const ReasoningFormat* reasoning = nullptr;  // format of reasoning; null: it stays content
  std::shared_ptr<const std::vector<int32_t>> marker_tokens;
  std::vector<int32_t> stop_tokens;  // tokens that end an answer in this format

  // Returns the rules for reading an answer to this prompt; null if all of it is content.
  std::shared_ptr<AnswerRules> rules(std::shared_ptr<const ToolSet> tool_set,
                                     std::string_view prompt) const;
};

// Returns the format of tool calls. `name`: "auto" (recognise it), "none", or a name of the table
// of formats. Throws Error for other names.
const ToolFormat* choose_tool_format(const ChatTemplates& templates, std::string_view name);
AnswerMarkup choose_answer_markup(const ChatTemplates& templates, const Tokenizer& tokenizer,
                                  std::string_view tools = "auto",
                                  std::string_view reasoning = "auto");

}  // namespace moebius
