// SPDX-License-Identifier: Apache-2.0
// Keeps the messages of a chat, renders them to a prompt by the folder's template, and runs the
// chat's loop.
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
  // Opens the chat template of a file, or of a folder where the file's name is empty. Throws Error
  // if there is none.
  Conversation(const std::string& folder, const std::string& file);
  // Replaces the system message, which comes first; an empty text removes it.
  void set_system(const std::string& text);
  void say(std::string_view role, std::string_view text);
  void take_back();  // removes the last message
  void clear();      // removes all but the system message
  // Reads a JSON array of messages, each with a role. Throws Error that names file, message and
  // field, and then changes nothing.
  void load(const std::string& file);
  void save(const std::string& file) const;
  // Sets tools that the template prints; `format` is as in choose_answer_markup. Throws Error if
  // the template cannot print tools.
  void set_tools(const Json& tools, const std::string& format);
  size_t size() const { return messages_.size(); }
  bool waits_for_answer() const;  // returns true if the last message is the user's
  std::vector<int32_t> prompt(const Tokenizer& tokenizer) const;

 private:
  Json as_json() const;
  bool has_system() const;
  ChatTemplates templates_;
  std::vector<Json> messages_;
  Json tools_;                          // tools that the template prints; null: none
  const ToolFormat* format_ = nullptr;  // format of calls
};

// Runs a chat: reads messages and commands and prints answers, until the input ends. Returns the
// exit code.
int converse(TextSession& session, Conversation& conversation, LineReader& reader);

}  // namespace moebius
