// SPDX-License-Identifier: Apache-2.0
// Chat templates: messages to prompt text. Templates come with models and are not trusted: time,
// memory, output and recursion are bounded, and nothing outside the given values can be reached.
// The result says which stretches come from the template and which from the input, so that text of
// a user never becomes a special token.
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
  const Json* tools = nullptr;      // array or null
  const Json* documents = nullptr;  // array or null
  bool add_generation_prompt = true;
  const Json* extra = nullptr;  // object: further names (enable_thinking, reasoning_effort, ...)
  std::optional<int64_t> now;  // seconds since 1970 UTC for strftime_now; the local clock if absent
  // What rendering may take, beside what grows with the input.
  uint64_t steps = 20'000'000;
  size_t memory = size_t{256} << 20;
  std::chrono::nanoseconds time = std::chrono::seconds(2);  // of this thread's CPU; 0: no limit
};

class ChatTemplate {
 public:
  // Throws Error("<name>, line L, column C: ...") for syntax that is not supported.
  explicit ChatTemplate(std::string_view source, std::string name = "chat template");
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // `tokens`: names such as bos_token with their text. Neighbouring segments differ in trust.
  // Thread-safe.
  std::vector<TextSegment> render(const ChatInput& input,
                                  const std::map<std::string, std::string>& tokens = {}) const;

 private:
  struct Parsed;
  std::unique_ptr<Parsed> parsed_;
};

// All templates of a folder: chat_template.jinja, else chat_template of tokenizer_config.json (a
// string, or a list of named templates), and the special tokens that templates may name.
class ChatTemplates {
 public:
  // Empty if the folder has none. Templates are parsed when they are first used, so that a broken
  // one disturbs nobody else.
  static ChatTemplates from_folder(const std::string& folder);
  bool empty() const { return sources_.empty(); }
  // With tools the one named "tool_use" if there is one, else "default" or the only one. Throws
  // Error. Thread-safe.
  std::vector<TextSegment> render(const ChatInput& input) const;
  const std::map<std::string, std::string>& tokens() const { return tokens_; }
  const std::string& folder() const { return folder_; }
  std::string text() const;  // of all of them

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
