// SPDX-License-Identifier: Apache-2.0
// Adapts past messages with tool calls to what templates expect: clients send arguments as text,
// their own ids, and null contents; the families' templates want objects, ids in their own form,
// and some want texts.
#pragma once
#include "text/answer/tool_format.h"
#include "text/chat_template.h"

namespace moebius {

// Return whether calls matter: has_calls(): a message has calls or the result of one;
// prints_calls(): a template prints them.
bool has_calls(const Json& messages);
bool prints_calls(const ChatTemplates& templates);

// Returns the messages with ids in the family's form, the name of the call in each result, and
// arguments as objects. Throws Error if arguments are not JSON.
Json with_family_calls(const Json& messages, CallIds ids);

// Returns the adapted messages, or null if nothing has to change. Throws Error if the template
// prints no calls.
Json repaired_messages(const Json& messages, const ChatTemplates& templates,
                       const ToolFormat* format);

// Renders the input; if the template refuses null contents, again with empty texts. Throws Error.
std::vector<TextSegment> render_filled(const ChatTemplates& templates, ChatInput input);

}  // namespace moebius
