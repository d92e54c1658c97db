// SPDX-License-Identifier: Apache-2.0
// Runs a conversation, which survives failures of single turns: an answer that was stopped stays,
// and a message that does not fit is removed.
#include "apps/chat/conversation.h"

#include <fmt/core.h>
#include <unistd.h>

#include <iostream>
#include <span>

#include "apps/cli/interrupt.h"
#include "apps/cli/manners.h"
#include "base/error.h"
#include "base/file.h"
#include "base/human.h"
#include "text/answer/answer_message.h"
#include "text/answer/past_messages.h"

namespace moebius {
namespace {

constexpr uint64_t kMaxMessages = uint64_t{64} << 20;

Json message_of(std::string_view role, std::string_view content) {
  return Json::object({{"role", role}, {"content", content}});
}

void check_message(const Json& m, const std::string& where) {
  if (!m.is_object()) fail("{} is {}; expected an object", where, kind_name(m.kind()));
  const Json* role = m.find("role");
  if (role == nullptr || !role->is_string()) fail("{}.role is missing or not a string", where);
  const Json* content = m.find("content");
  if (content == nullptr) return;  // a message with calls of tools has no content
  if (!content->is_string() && !content->is_array() && !content->is_null())
    fail("{}.content is {}; expected a string, an array or null", where,
         kind_name(content->kind()));
}

}  // namespace

Conversation::Conversation(const std::string& folder, const std::string& file)
    : templates_(ChatTemplates::from_folder(folder, file)) {
  if (templates_.empty())
    fail(
        "{}: has no chat template, which --chat, --messages and -i need; --chat-template names "
        "one; "
        "without them the text of -p is continued",
        printable(folder));
  format_ = choose_tool_format(templates_, "auto");
}

void Conversation::set_tools(const Json& tools, const std::string& format) {
  format_ = choose_tool_format(templates_, format);
  if (format_ == nullptr)
    fail("the chat template names no known format of calls; --tool-format can name one");
  tools_ = template_tools(tools);
}

bool Conversation::has_system() const {
  return !messages_.empty() && messages_[0].find("role")->as_string() == "system";
}

void Conversation::set_system(const std::string& text) {
  if (has_system()) messages_.erase(messages_.begin());
  if (!text.empty()) messages_.insert(messages_.begin(), message_of("system", text));
}

void Conversation::say(std::string_view role, std::string_view text) {
  messages_.push_back(message_of(role, text));
}

bool Conversation::waits_for_answer() const {
  return !messages_.empty() && messages_.back().find("role")->as_string() == "user";
}

void Conversation::take_back() { messages_.pop_back(); }

void Conversation::clear() { messages_.resize(has_system() ? 1 : 0); }

void Conversation::load(const std::string& file) {
  const Json list = parse_json(read_input(file, kMaxMessages), file);
  if (!list.is_array())
    fail("{}: the file is {}; expected an array of messages", file, kind_name(list.kind()));
  if (list.items().empty()) fail("{}: has no message", file);
  for (size_t i = 0; i < list.items().size(); ++i)
    check_message(list.items()[i], fmt::format("{}: message {}", file, i));
  messages_ = list.items();
}

void Conversation::save(const std::string& file) const {
  const std::string text = as_json().dump(1) + "\n";
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(text.data()), text.size());
  write_output(file, {&bytes, 1});
}

Json Conversation::as_json() const {
  Json list = Json::array();
  for (const Json& m : messages_) list.push(m);
  return list;
}

std::vector<int32_t> Conversation::prompt(const Tokenizer& tokenizer) const {
  Json list = as_json();
  if (Json repaired = repaired_messages(list, templates_, format_); repaired.is_array())
    list = std::move(repaired);
  ChatInput input;
  input.messages = &list;
  if (!tools_.is_null()) input.tools = &tools_;
  return tokenizer.encode_segments(render_filled(templates_, input), false);
}

namespace {

class Talk {
 public:
  Talk(TextSession& session, Conversation& conversation, LineReader& reader)
      : session_(session), conversation_(conversation), reader_(reader) {}

  int run() {
    if (isatty(STDIN_FILENO) != 0 && !manners().quiet)
      tell(
          "Type a message, or /help for commands. Ctrl-C stops an answer; /exit or Ctrl-D leaves.");
    if (conversation_.waits_for_answer()) answer();
    while (true) {
      clear_interrupt();
      const std::optional<std::string> text = read_message(reader_);
      if (!text || interrupt_seen()) break;
      if (*text == "/exit" || *text == "/quit" || *text == "/bye") break;
      if (text->starts_with('/') && !text->starts_with("//"))
        command(*text);
      else if (!text->empty())
        turn(text->starts_with("//") ? text->substr(1) : *text);
    }
    if (total_.prompt_tokens != 0 && !manners().quiet) statistics();
    return interrupt_seen() ? 130 : 0;
  }

 private:
  static void tell(const std::string& text) { put_on_stderr(text + "\n"); }

  void turn(const std::string& text) {
    conversation_.say("user", text);
    if (!answer()) conversation_.take_back();
  }

  // Answers the last message. Returns false if there was no answer; the conversation is then as
  // before.
  bool answer() {
    try {
      const std::vector<int32_t> prompt = conversation_.prompt(*session_.tokenizer());
      if (prompt.size() >= session_.context()) {
        tell(full(prompt.size()));
        return false;
      }
      const Answer a =
          session_.answer(prompt, [](std::string_view text) { std::cout << text << std::flush; });
      std::cout << '\n' << std::flush;
      add(total_, a);
      if (a.finish == "error") {
        tell("moebius: " + a.error);
        return false;
      }
      conversation_.say("assistant", a.text);
      if (a.finish == "context") tell(full(session_.context()));
      if (a.finish == "interrupted") tell("(stopped)");
      if (a.finish == "length")
        tell(fmt::format("(cut off after {}: the limit of -n)", counted(a.tokens.size(), "token")));
      return true;
    } catch (const Error& e) {  // the template refused it, or there is no memory
      tell(std::string("moebius: ") + e.what());
      return false;
    }
  }

  std::string full(size_t tokens) const {
    return fmt::format(
        "moebius: the context is full: the conversation has {} tokens, and {} fit. Nothing is "
        "lost: /save FILE writes the conversation, /reset starts a new one, and a larger -c makes "
        "room next time",
        tokens, session_.context());
  }

  void command(const std::string& line) {
    const size_t space = std::min(line.find_first_of(" \t\n"), line.size());
    const std::string name = line.substr(0, space);
    const size_t begin = line.find_first_not_of(" \t\n", space);
    const std::string rest = begin == std::string::npos ? "" : line.substr(begin);
    try {
      run_command(name, rest);
    } catch (const Error& e) {
      tell(std::string("moebius: ") + e.what());
    }
  }

  void run_command(const std::string& name, const std::string& rest) {
    if (name == "/help") {
      tell(
          "/reset         start over; the system message stays\n"
          "/system TEXT   replace the system message (no TEXT: remove it)\n"
          "/save FILE     write the messages as JSON\n"
          "/load FILE     continue from such a file, as --messages FILE does\n"
          "/stats         tokens and speed so far\n"
          "/help          this list\n"
          "/exit          leave; /quit and /bye do the same\n"
          "//...          a message that begins with /\n"
          "A line that ends with \\ continues on the next; \"\"\" starts and ends a longer text.\n"
          "Ctrl-C stops an answer. At the prompt Ctrl-C and Ctrl-D leave.");
    } else if (name == "/reset") {
      conversation_.clear();
      tell("(forgotten)");
    } else if (name == "/system") {
      conversation_.set_system(rest);
      tell(rest.empty() ? "(no system message)" : "(system message set)");
    } else if (name == "/stats") {
      if (total_.prompt_tokens == 0)
        tell("(nothing was said yet)");
      else
        statistics();
    } else if (name == "/save" || name == "/load") {
      if (rest.empty()) fail("{} needs the name of a file", name);
      if (name == "/save")
        conversation_.save(rest);
      else
        conversation_.load(rest);
      tell(fmt::format("({} {})", counted(conversation_.size(), "message"),
                       name == "/save" ? "saved" : "loaded"));
    } else {
      fail("{} is no command; /help lists them, and // starts a message that begins with /",
           printable(name, 40));
    }
  }

  void statistics() { tell(session_.summary(total_, session_.statistics(total_))); }

  TextSession& session_;
  Conversation& conversation_;
  LineReader& reader_;
  Answer total_;
};

}  // namespace

int converse(TextSession& session, Conversation& conversation, LineReader& reader) {
  return Talk(session, conversation, reader).run();
}

}  // namespace moebius
