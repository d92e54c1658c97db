// SPDX-License-Identifier: Apache-2.0
#include "text/answer/past_messages.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "text/answer/call_parser.h"

namespace moebius {
namespace {

// Returns the last nine letters and digits, the form of ids that Mistral's templates accept.
std::string last_nine(const std::string& id) {
  std::string out;
  for (const char c : id)
    if (is_name_byte(c) && c != '_' && c != '.' && c != '-') out += c;
  if (out.size() < 9) out.insert(0, 9 - out.size(), '0');
  return out.substr(out.size() - 9);
}

Json with_member(const Json& object, std::string_view key, Json value) {
  Json out = Json::object();
  bool found = false;
  for (const auto& [name, old] : object.members()) {
    out.set(name, name == key ? value : old);
    found = found || name == key;
  }
  if (!found) out.set(std::string(key), std::move(value));
  return out;
}

const std::string& text_of(const Json* object, std::string_view key) {
  static const std::string none;
  const Json* v = object != nullptr ? object->find(key) : nullptr;
  return v != nullptr && v->is_string() ? v->as_string() : none;
}

const Json* calls_of(const Json& message) {
  const Json* calls = message.find("tool_calls");
  return calls != nullptr && !calls->items().empty() ? calls : nullptr;
}

bool is_result(const Json& message) { return text_of(&message, "role") == "tool"; }

// Returns the call with its arguments as an object; an empty text means no arguments.
Json with_object_arguments(const Json& call, const Json& function) {
  const Json* arguments = function.find("arguments");
  if (arguments == nullptr || !arguments->is_string()) return call;
  const std::string& text = arguments->as_string();
  Json object = text.empty() ? Json::object() : parse_json_strictly(text, "arguments of a call");
  return with_member(call, "function", with_member(function, "arguments", std::move(object)));
}

Json with_contents(const Json& messages) {
  Json out = Json::array();
  for (const Json& m : messages.items()) {
    const Json* content = m.find("content");
    out.push(content != nullptr && content->is_null() ? with_member(m, "content", "") : m);
  }
  return out;
}

}  // namespace

bool has_calls(const Json& messages) {
  const auto& list = messages.items();
  return std::any_of(list.begin(), list.end(),
                     [](const Json& m) { return calls_of(m) != nullptr || is_result(m); });
}

bool prints_calls(const ChatTemplates& templates) {
  return templates.text().find("tool_calls") != std::string::npos;
}

Json with_family_calls(const Json& messages, CallIds ids) {
  // New id and name of each call, by its original id.
  std::map<std::string, std::pair<std::string, std::string>> known;
  size_t count = 0;
  const auto own_call = [&](const Json& call) {
    const Json* function = call.find("function");
    const std::string& name = text_of(function, "name");
    const std::string& id = text_of(&call, "id");
    std::string own = id;
    if (ids == CallIds::kNine) own = last_nine(id);
    if (ids == CallIds::kFunctions) own = fmt::format("functions.{}:{}", name, count);
    ++count;
    known[id] = {own, name};
    return with_member(function != nullptr ? with_object_arguments(call, *function) : call, "id",
                       own);
  };
  const auto own_result = [&](const Json& message) {
    const std::string& id = text_of(&message, "tool_call_id");
    const auto at = known.find(id);
    if (at == known.end())
      return ids == CallIds::kNine ? with_member(message, "tool_call_id", last_nine(id)) : message;
    const Json m = with_member(message, "tool_call_id", at->second.first);
    return message.find("name") == nullptr ? with_member(m, "name", at->second.second) : m;
  };
  Json out = Json::array();
  for (const Json& message : messages.items()) {
    if (const Json* calls = calls_of(message)) {
      Json list = Json::array();
      for (const Json& call : calls->items()) list.push(own_call(call));
      out.push(with_member(message, "tool_calls", std::move(list)));
    } else {
      out.push(is_result(message) ? own_result(message) : message);
    }
  }
  return out;
}

Json repaired_messages(const Json& messages, const ChatTemplates& templates,
                       const ToolFormat* format) {
  if (!has_calls(messages)) return {};
  if (!prints_calls(templates)) fail("the chat template does not print calls of tools");
  return with_family_calls(messages, format != nullptr ? format->ids : CallIds::kOwn);
}

std::vector<TextSegment> render_filled(const ChatTemplates& templates, ChatInput input) {
  try {
    return templates.render(input);
  } catch (const Error&) {
    // Some templates add a content to a string and need one; others test whether there is none.
    const auto& list = input.messages->items();
    if (std::none_of(list.begin(), list.end(), [](const Json& m) {
          const Json* content = m.find("content");
          return content != nullptr && content->is_null();
        }))
      throw;
  }
  const Json filled = with_contents(*input.messages);
  input.messages = &filled;
  return templates.render(input);
}

}  // namespace moebius
