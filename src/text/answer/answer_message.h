// SPDX-License-Identifier: Apache-2.0
// A whole answer as one message of a chat, for callers who have its tokens: the command line, C, C++
// and Python.
#pragma once
#include <span>

#include "text/answer/answer_markup.h"
#include "text/answer/events.h"

namespace moebius {

// Of a list in OpenAI's form, {"type": "function", "function": {...}} or the functions themselves;
// null: there are none. Throws Error.
std::shared_ptr<ToolSet> tool_set_of(const Json& tools);
// The same list for a template, all of it in OpenAI's form.
Json template_tools(const Json& tools);
bool is_tool_name(std::string_view name);

// The end of a prompt as text: enough to see where its answer starts.
std::string prompt_end(const Tokenizer& tokenizer, std::span<const int32_t> prompt);

// {"role": "assistant", "content", "reasoning_content"?, "tool_calls"?}: what templates take as a
// past message. Ids are those of the family, or call_0, call_1, ...
Json message_of(const AnswerMarkup& markup, const AnswerEvents& events);

// `prompt`: what the answer follows, or its end. `ended`: the answer came to its own end.
AnswerEvents events_of(const AnswerMarkup& markup, const Tokenizer& tokenizer,
                       std::shared_ptr<const ToolSet> tools, std::string_view prompt,
                       std::span<const int32_t> ids, bool ended);

}  // namespace moebius
