// SPDX-License-Identifier: Apache-2.0
// Turns a whole answer into one chat message, for callers that have all tokens: the command line,
// C, C++ and Python.
#pragma once
#include <span>

#include "text/answer/answer_markup.h"
#include "text/answer/events.h"

namespace moebius {

// Parses a list of tools in OpenAI's form, {"type": "function", "function": {...}}, or of plain
// functions. Null: no tools. Throws Error.
std::shared_ptr<ToolSet> tool_set_of(const Json& tools);
// Returns the list in OpenAI's form, as templates expect it.
Json template_tools(const Json& tools);
bool is_tool_name(std::string_view name);

// Returns the end of a prompt as text, long enough to see how its answer starts.
std::string prompt_end(const Tokenizer& tokenizer, std::span<const int32_t> prompt);

// Returns {"role": "assistant", "content", "reasoning_content"?, "tool_calls"?}, as templates take
// past messages. Ids of calls are those that the model wrote, or call_0, call_1, ...
Json message_of(const AnswerMarkup& markup, const AnswerEvents& events);

// Reads an answer. `prompt`: the text before the answer, or its end. `ended`: the model ended the
// answer itself.
AnswerEvents events_of(const AnswerMarkup& markup, const Tokenizer& tokenizer,
                       std::shared_ptr<const ToolSet> tools, std::string_view prompt,
                       std::span<const int32_t> ids, bool ended);

}  // namespace moebius
