// SPDX-License-Identifier: Apache-2.0
// The messages of a chat and the prompt that the folder's template makes of them; and the loop that
// talks.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "apps/chat/text_session.h"
#include "apps/cli/line_reader.h"
#include "base/json.h"
#include "text/answer/tool_format.h"
#include "text/chat_template.h"

namespace moebius {

class Conversation {
 public:
  explicit Conversation(const std::string& folder);  // throws Error where it has no chat template
  // Replaces the system message, which comes first; empty: there is none.
  void set_system(const std::string& text);
  void say(std::string_view role, std::string_view text);
  void take_back();  // the last message
  void clear();      // all but the system message
  // A JSON array of messages, each with a role. Throws Error naming file, message and field, and
  // then nothing has changed.
  void load(const std::string& file);
  void save(const std::string& file) const;
  // Tools that the template prints; `format` as choose_answer_markup takes it. Throws Error where
  // there is none.
  void set_tools(const Json& tools, const std::string& format);
  size_t size() const { return messages_.size(); }
  bool waits_for_answer() const;  // the last message is the user's
  std::vector<int32_t> prompt(const Tokenizer& tokenizer) const;

 private:
  Json as_json() const;
  bool has_system() const;
  ChatTemplates templates_;
  std::vector<Json> messages_;
  Json tools_;                          // null: none
  const ToolFormat* format_ = nullptr;  // of calls
};

// Reads messages and commands, prints answers. Returns the exit code.
int converse(TextSession& session, Conversation& conversation, LineReader& reader);

}  // namespace moebius
