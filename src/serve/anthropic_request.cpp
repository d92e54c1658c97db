// SPDX-License-Identifier: Apache-2.0
// Parses requests of /v1/messages, in Anthropic's form, into the messages of a chat.
#include <fmt/core.h>

#include "base/error.h"
#include "serve/body_fields.h"
#include "serve/request.h"
#include "serve/structured.h"
#include "serve/tools.h"

namespace moebius {
namespace {

// The header changes with every request, and would end the shared prefix at its place.
constexpr std::string_view kBillingHeader = "x-anthropic-billing-header:";

[[noreturn]] void unsupported(const std::string& path, std::string_view type,
                              std::string_view offered) {
  refuse("unsupported", path, "{} is '{}'; only {}", path, printable(type, 40), offered);
}

std::string system_text(const Json& system) {
  if (system.is_string()) return system.as_string();
  if (!system.is_array()) wrong_type(system, "system", "a string or an array of text blocks");
  std::string out;
  for (size_t i = 0; i < system.items().size(); ++i) {
    const std::string at = fmt::format("system[{}]", i);
    const Fields f = fields_of(system.items()[i], at);
    if (const std::string type = f.required_string("type"); type != "text")
      unsupported(at + ".type", type, "text is offered");
    const std::string text = f.required_string("text");
    if (text.starts_with(kBillingHeader)) continue;
    if (!out.empty()) out += '\n';
    out += text;
  }
  return out;
}

// Reads one message, which may become several: results of tools are messages of their own.
class MessageReader {
 public:
  explicit MessageReader(Json& out) : out_(out) {}

  void read(const Json& message, const std::string& path) {
    const Fields f = fields_of(message, path);
    role_ = f.word("role", {"user", "assistant"});
    const Json& content = f.required("content");
    message_ = {};
    if (content.is_string())
      say(content.as_string());
    else
      f.array("content", "a string or an array of blocks");
    for (size_t i = 0; content.is_array() && i < content.items().size(); ++i)
      block(content.items()[i], fmt::format("{}.content[{}]", path, i));
    flush(out_.items().empty() || role_ == "assistant");
  }

 private:
  void say(const std::string& text) {
    message_.text += text;
    message_.said = true;
  }

  void block(const Json& b, const std::string& at) {
    const Fields f = fields_of(b, at);
    const std::string type = f.required_string("type");
    const bool assistant = role_ == "assistant";
    if (type == "text") return say(f.required_string("text"));
    if (type == "thinking" && assistant) {
      message_.reasoning += f.required_string("thinking");
      return;
    }
    if (type == "redacted_thinking" && assistant) return;
    if (type == "tool_use" && assistant) return call(f, at);
    if (type == "tool_result" && !assistant) return result(f, at);
    unsupported(at + ".type", type,
                assistant ? "text, thinking, redacted_thinking and tool_use are offered here"
                          : "text and tool_result are offered here");
  }

  void call(const Fields& f, const std::string& at) {
    const Json* input = f.find("input");
    if (input == nullptr || !input->is_object())
      refuse("missing", at + ".input", "{}.input is no object", at);
    message_.add_call(f, "id", *input);
  }

  void result(const Fields& f, const std::string& at) {
    flush(false);
    const Json* content = f.find("content");
    std::string text = content != nullptr ? content_text(*content, at + ".content") : "";
    if (f.boolean("is_error", false)) text.insert(0, "Error: ");
    out_.push(Json::object({{"role", "tool"},
                            {"content", std::move(text)},
                            {"tool_call_id", f.required_string("tool_use_id")}}));
  }

  void flush(bool always) {
    if (always || !message_.empty()) message_.push_to(out_, role_);
  }

  Json& out_;
  std::string role_;
  PastMessage message_;
};

void read_conversation(const Fields& f, ApiRequest& r) {
  f.required("messages");
  const Json* messages = f.array("messages");
  if (messages->items().empty())
    refuse("out_of_range", "messages", "messages has 0 entries; expected at least 1");
  r.messages = Json::array();
  if (const Json* system = f.find("system"))
    if (const std::string text = system_text(*system); !text.empty())
      r.messages.push(Json::object({{"role", "system"}, {"content", text}}));
  MessageReader reader(r.messages);
  for (size_t i = 0; i < messages->items().size(); ++i)
    reader.read(messages->items()[i], fmt::format("messages[{}]", i));
  // If the last message is the assistant's, the answer continues it.
  const Json& last = r.messages.items().back();
  if (last.find("role")->as_string() == "assistant" && last.find("tool_calls") == nullptr)
    continue_last_message(r);
}

void read_thinking(const Fields& f, ApiRequest& r) {
  const Json* thinking = f.object("thinking");
  if (thinking == nullptr) return;
  const Fields t(*thinking, "thinking");
  const std::string type = t.required_string("type");
  if (type == "adaptive") return;  // the template's default
  if (type != "enabled" && type != "disabled")
    unsupported("thinking.type", type, "enabled, disabled and adaptive are offered");
  const bool on = type == "enabled";
  for (const char* name : {"enable_thinking", "thinking"}) r.template_extra.set(name, on);
  if (const auto budget = t.integer("budget_tokens", 1, int64_t{1} << 31); budget && on)
    r.thinking_budget = static_cast<size_t>(*budget);
}

void read_anthropic_tools(const Fields& f, ApiRequest& r, const ServedModel& model) {
  r.tool_choice = ToolChoice::kAuto;
  each_tool(f, [&](const Fields& t, const std::string& at) {
    if (const auto type = t.string("type"); type && *type != "custom")
      unsupported(at + ".type", *type, "custom is offered");
    add_tool(r, t, at, "input_schema");
  });
  if (const Json* choice = f.object("tool_choice")) {
    const Fields c(*choice, "tool_choice");
    const std::string type = c.required_string("type");
    if (type == "none")
      r.tool_choice = ToolChoice::kNone;
    else if (type == "any")
      r.tool_choice = ToolChoice::kRequired;
    else if (type == "tool")
      r.tool_choice = ToolChoice::kNamed;
    else if (type != "auto")
      unsupported("tool_choice.type", type, "auto, any, tool and none are offered");
    if (type == "tool") r.tool_name = c.required_string("name");
    r.parallel_calls = !c.boolean("disable_parallel_tool_use", false);
  }
  finish_tools(r, model, "tool_choice");
}

}  // namespace

ApiRequest parse_anthropic_request(const RequestBody& body, const ServedModel& model) {
  const BodyFields f(body);
  ApiRequest r = read_common(body, model);
  read_conversation(f, r);
  for (std::string& stop : f.strings("stop_sequences", 1024))
    r.generation.text.stops.push_back(std::move(stop));
  read_thinking(f, r);
  if (const Json* config = f.object("output_config")) {
    const Fields c(*config, "output_config");
    if (const auto effort = c.string("effort")) r.template_extra.set("reasoning_effort", *effort);
    if (const Json* format = c.find("format"))
      r.format = format_of_type(*format, "output_config.format");
  }
  if (const Json* format = f.find("output_format")) {  // older name of output_config
    if (r.format.given())
      refuse("conflict", "output_format",
             "output_config.format and output_format cannot both be given");
    r.format = format_of_type(*format, "output_format");
  }
  read_anthropic_tools(f, r, model);
  return r;
}

void read_anthropic_length(const RequestBody& body, ApiRequest& r) {
  const BodyFields f(body);
  f.required("max_tokens");
  read_length(f, "max_tokens", r);
}

}  // namespace moebius
