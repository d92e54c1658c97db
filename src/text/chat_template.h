// SPDX-License-Identifier: Apache-2.0
// Renders chat templates: messages to prompt text. Templates come with models and are untrusted:
// time, memory, output and recursion are limited, and templates reach only the given values. The
// result marks which parts come from the template and which from the input, so that text of a user
// never becomes a special token.
#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/once.h"
#include "text/segment.h"

namespace moebius {

struct ChatInput {
  const Json* messages = nullptr;   // array of objects with role, content, ...
  const Json* tools = nullptr;      // array of tools, or null
  const Json* documents = nullptr;  // array of documents, or null
  bool add_generation_prompt = true;
  // Object of further variables of the template (enable_thinking, reasoning_effort, ...), or null.
  const Json* extra = nullptr;
  std::optional<int64_t> now;  // seconds since 1970 UTC for strftime_now; absent: the local clock
  // Limits of rendering, in addition to what grows with the input.
  uint64_t steps = 20'000'000;
  size_t memory = size_t{16} << 20;                         // also of the text
  std::chrono::nanoseconds time = std::chrono::seconds(2);  // CPU time of this thread; 0: no limit
};

class ChatTemplate {
 public:
  // Parses a template. Throws Error("<name>, line L, column C: ...") for unsupported syntax.
  explicit ChatTemplate(std::string_view source, std::string name = "chat template");

  // Renders the input. `tokens`: variables such as bos_token with their text. Neighbouring segments
  // differ in trust. Thread-safe. Throws Error.
  std::vector<TextSegment> render(const ChatInput& input,
                                  const std::map<std::string, std::string>& tokens = {}) const;

 private:
  struct Parsed;
  std::shared_ptr<Parsed> parsed_;
};

// Holds all templates of a folder: chat_template.jinja, else chat_template of tokenizer_config.json
// (a string, or a list of named templates), and the special tokens that templates may use as
// variables.
class ChatTemplates {
 public:
  // Reads the templates; the result is empty if the folder has none. Templates are parsed at first
  // use, so that a broken one affects only its users. `file`: a template in place of the folder's;
  // empty: none.
  static ChatTemplates from_folder(const std::string& folder, const std::string& file = "");
  bool empty() const { return sources_.empty(); }
  // Renders with the template named "tool_use" if there are tools, else "default", or the only one.
  // Throws Error. Thread-safe.
  std::vector<TextSegment> render(const ChatInput& input) const;
  const std::map<std::string, std::string>& tokens() const { return tokens_; }
  const std::string& folder() const { return folder_; }
  std::string text() const;  // source of all templates together

 private:
  struct Lazy {
    Once once;
    std::optional<ChatTemplate> parsed;
  };
  struct Source {
    std::string text, where;
    std::shared_ptr<Lazy> lazy = std::make_shared<Lazy>();
  };
  std::map<std::string, Source> sources_;
  std::map<std::string, std::string> tokens_;
  std::string folder_;
};

}  // namespace moebius
