// SPDX-License-Identifier: Apache-2.0
// Past messages that called tools, as templates expect them: clients send arguments as text, ids of
// their own and contents that are null; templates of the families want objects, ids in their form,
// and some of them texts.
#pragma once
#include "text/answer/tool_format.h"
#include "text/chat_template.h"

namespace moebius {

// Whether a message has calls, or the result of one.
bool has_calls(const Json& messages);
bool prints_calls(const ChatTemplates& templates);

// Ids in the form of the family, results with the name of their call, arguments as objects. Throws
// Error where arguments are no JSON.
Json with_family_calls(const Json& messages, CallIds ids);

// Both of the above: null where there is nothing to change. Throws Error where the template prints
// no calls.
Json repaired_messages(const Json& messages, const ChatTemplates& templates,
                       const ToolFormat* format);

// Where the template refuses contents that are null, they are empty texts. Throws Error.
std::vector<TextSegment> render_filled(const ChatTemplates& templates, ChatInput input);

}  // namespace moebius
