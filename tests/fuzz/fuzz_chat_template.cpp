// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a chat template, a zero byte, and a JSON object of values (a conversation if there
// is none). Parsing and rendering throw Error or give valid UTF-8 in which no text of the
// conversation is marked as trusted.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "fuzz/target.h"
#include "text/chat_template.h"

namespace moebius::fuzz_chat_template {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

constexpr std::string_view kValues =
    R"({"messages": [{"role": "system", "content": "S\u00e9"}, {"role": "user", "content": "\u2603U <x>"},
       {"role": "assistant", "content": null, "tool_calls": [{"id": "123456789", "function": {"name": "f", "arguments": {"a": [1, 2.5, null, true]}}}]},
       {"role": "tool", "content": "T"}], "tools": [{"function": {"name": "f", "description": "d", "parameters": {"type": "object", "properties": {"a": {"type": "array"}}}}}],
       "n": 3, "text": "a b"})";

}  // namespace

FUZZ_TARGET(chat_template) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(all.find('\0'), all.size());
  const std::string_view rest = all.substr(std::min(cut + 1, all.size()));
  try {
    const ChatTemplate t(all.substr(0, cut));
    const Json values = parse_json(rest.empty() ? kValues : rest, "values");
    ChatInput in;
    in.messages = values.find("messages");
    in.tools = values.find("tools");
    in.extra = values.is_object() ? &values : nullptr;
    in.now = 1'700'000'000;
    std::string text;
    for (const TextSegment& s : t.render(in, {{"bos_token", "<s>"}})) {
      text += s.text;
      // The snowman is in the conversation only, unless the template writes it.
      if (s.trusted && all.find("\xe2\x98\x83") == std::string_view::npos &&
          all.find('\\') == std::string_view::npos && rest.empty())
        require(s.text.find("\xe2\x98\x83") == std::string::npos);
    }
    require(is_utf8(text));
  } catch (const Error& e) {
    require(*e.what() != '\0');
  }
  return 0;
}

}  // namespace moebius::fuzz_chat_template
