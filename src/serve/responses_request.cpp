// SPDX-License-Identifier: Apache-2.0
// Parses requests of /v1/responses: items become the messages of a chat. Nothing is stored, so
// references to stored objects are refused by name.
#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "serve/body_fields.h"
#include "serve/request.h"
#include "serve/structured.h"
#include "serve/tools.h"

namespace moebius {
namespace {

// Reads items; adjacent items of the assistant become one message.
class ItemReader {
 public:
  explicit ItemReader(Json& out) : out_(out) {}

  void read(const Json& item, const std::string& at) {
    const Fields f = fields_of(item, at);
    const std::string type = f.string("type").value_or("message");
    if (type == "message") return message(f, at);
    if (type == "function_call") return call(f, at);
    if (type == "function_call_output") return output(f, at);
    if (type == "reasoning") return reasoning(f, at);
    if (type == "item_reference")
      refuse("unsupported", at + ".type", "{}.type is item_reference; nothing is stored here", at);
    refuse(
        "unsupported", at + ".type",
        "{}.type is '{}'; message, function_call, function_call_output and reasoning are offered",
        at, printable(type, 40));
  }

  void flush() {
    if (std::exchange(open_, false)) message_.push_to(out_, "assistant");
  }

 private:
  void message(const Fields& f, const std::string& at) {
    const std::string role = f.word("role", {"user", "assistant", "system", "developer"});
    const std::string text =
        content_text(f.required("content"), at + ".content", {"input_text", "output_text", "text"});
    if (role == "assistant") {
      open_ = true;
      message_.text += text;
      message_.said = !message_.text.empty();
      return;
    }
    flush();
    out_.push(Json::object({{"role", role == "developer" ? "system" : role}, {"content", text}}));
  }

  void call(const Fields& f, const std::string& at) {
    Json arguments =
        past_arguments(f.string("arguments").value_or(""), at + ".arguments", values_left_);
    open_ = true;
    message_.add_call(f, "call_id", std::move(arguments));
  }

  void output(const Fields& f, const std::string& at) {
    flush();
    out_.push(Json::object({{"role", "tool"},
                            {"content", content_text(f.required("output"), at + ".output",
                                                     {"input_text", "output_text", "text"})},
                            {"tool_call_id", f.required_string("call_id")}}));
  }

  void reasoning(const Fields& f, const std::string& at) {
    if (message_.said || !message_.calls.items().empty()) flush();
    for (const char* name : {"content", "summary"})
      if (const Json* parts = f.find(name); parts != nullptr && message_.reasoning.empty())
        message_.reasoning =
            content_text(*parts, at + "." + name, {"reasoning_text", "summary_text", "text"});
    open_ = true;
  }

  Json& out_;
  PastMessage message_;
  bool open_ = false;
  size_t values_left_ = kMostBodyValues;
};

void read_input(const Fields& f, ApiRequest& r) {
  r.messages = Json::array();
  if (const auto instructions = f.string("instructions"); instructions && !instructions->empty())
    r.messages.push(Json::object({{"role", "system"}, {"content", *instructions}}));
  const Json& input = f.required("input");
  if (input.is_string()) {
    r.messages.push(Json::object({{"role", "user"}, {"content", input.as_string()}}));
    return;
  }
  const Json* items = f.array("input", "a string or an array of items");
  ItemReader reader(r.messages);
  for (size_t i = 0; i < items->items().size(); ++i)
    reader.read(items->items()[i], fmt::format("input[{}]", i));
  reader.flush();
  if (r.messages.items().empty()) refuse("out_of_range", "input", "input has no items");
}

void refuse_stored(const Fields& f) {
  for (const char* name : {"previous_response_id", "conversation", "prompt"})
    if (f.has(name)) refuse("unsupported", name, "{} is not offered: nothing is stored here", name);
  for (const char* name : {"store", "background"})
    if (f.boolean(name, false))
      refuse("unsupported", name, "{} is true; nothing is stored here", name);
  if (const auto truncation = f.string("truncation"); truncation && *truncation != "disabled")
    refuse("unsupported", "truncation", "truncation is '{}'; only disabled is offered",
           printable(*truncation, 40));
}

void read_responses_tools(const Fields& f, ApiRequest& r, const ServedModel& model) {
  r.tool_choice = ToolChoice::kAuto;
  each_tool(f, [&](const Fields& t, const std::string& at) {
    if (const std::string type = t.required_string("type"); type != "function")
      refuse("unsupported", at + ".type", "{}.type is '{}'; only function is offered", at,
             printable(type, 40));
    add_tool(r, t, at, "parameters");
  });
  if (const Json* choice = f.find("tool_choice");
      choice != nullptr && !read_choice_word(*choice, r)) {
    if (!choice->is_object()) wrong_type(*choice, "tool_choice", "a string or an object");
    const Fields c(*choice, "tool_choice");
    if (c.string("type").value_or("") != "function")
      refuse("unsupported", "tool_choice.type", "tool_choice.type is another than function");
    r.tool_choice = ToolChoice::kNamed;
    r.tool_name = c.required_string("name");
  }
  r.parallel_calls = f.boolean("parallel_tool_calls", true);
  finish_tools(r, model, "tool_choice");
}

// Reads whether log-probabilities are requested, which two fields can do. Other values of `include`
// belong to features that are refused elsewhere, or name what is always sent.
void read_responses_logprobs(const BodyFields& f, ApiRequest& r) {
  bool asked = false;
  if (const Json* include = f.array("include", "an array of strings"))
    for (const Json& word : include->items())
      asked = asked || (word.is_string() && word.as_string() == "message.output_text.logprobs");
  const int64_t top = f.integer("top_logprobs").value_or(0);
  if (asked || top > 0) r.generation.sampling.logprobs = static_cast<int>(top);
}

// Returns the members of the answer that repeat the request.
Json repeated(const Fields& f, const Request& g) {
  Json out = Json::object();
  const auto same = [&](const char* name, const Json& otherwise) {
    const Json* v = f.find(name);
    out.set(name, v != nullptr ? *v : otherwise);
  };
  same("instructions", Json());
  same("max_output_tokens", Json());
  same("metadata", Json::object());
  same("parallel_tool_calls", true);
  same("reasoning", Json::object({{"effort", Json()}, {"summary", Json()}}));
  same("temperature", static_cast<double>(g.sampling.temperature));
  same("text", Json::object({{"format", Json::object({{"type", "text"}})}}));
  same("tool_choice", "auto");
  same("tools", Json::array());
  same("top_logprobs", 0);
  same("top_p", static_cast<double>(g.sampling.top_p));
  same("user", Json());
  return out;
}

}  // namespace

ApiRequest parse_responses_request(const RequestBody& body, const ServedModel& model) {
  const BodyFields f(body);
  ApiRequest r = read_common(body, model);
  refuse_stored(f);
  read_input(f, r);
  read_length(f, "max_output_tokens", r);
  if (const Json* reasoning = f.object("reasoning"))
    if (const auto effort = Fields(*reasoning, "reasoning").string("effort"))
      r.template_extra.set("reasoning_effort", *effort);
  if (const Json* text = f.object("text"))
    if (const Json* format = Fields(*text, "text").find("format"))
      r.format = format_of_type(*format, "text.format");
  if (const auto key = f.string("prompt_cache_key")) {
    if (key->size() > 1024)
      invalid("prompt_cache_key", "prompt_cache_key is longer than 1024 bytes");
    // The lengths come first, so that no two pairs give the same salt.
    const std::string salt = r.generation.salt;
    r.generation.salt = fmt::format("{}:{}{}", salt.size(), salt, *key);
  }
  read_responses_tools(f, r, model);
  read_responses_logprobs(f, r);
  r.echoed = repeated(f, r.generation);
  return r;
}

}  // namespace moebius
