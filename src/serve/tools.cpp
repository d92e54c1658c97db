// SPDX-License-Identifier: Apache-2.0
#include "serve/tools.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "serve/structured.h"
#include "text/answer/call_grammar.h"
#include "text/answer/call_parser.h"

namespace moebius {
namespace {

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes &&
         std::all_of(name.begin(), name.end(), is_name_byte);
}

// Letters and digits alone, the last nine, as Mistral's templates want them.
std::string nine(const std::string& id) {
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

const std::string& text_of(const Json& object, std::string_view key) {
  static const std::string none;
  const Json* v = object.find(key);
  return v != nullptr && v->is_string() ? v->as_string() : none;
}

bool asks_for_call(const ApiRequest& r) {
  return r.tool_choice == ToolChoice::kRequired || r.tool_choice == ToolChoice::kNamed;
}

}  // namespace

const Json* tool_list(const Fields& f) {
  const Json* tools = f.find("tools");
  if (tools != nullptr && !tools->is_array()) wrong_type(*tools, "tools", "an array");
  return tools;
}

void add_tool(ApiRequest& r, const ToolInput& tool, const std::string& at,
              std::string_view schema_name) {
  const std::string path = at + ".name";
  if (!is_tool_name(tool.name))
    invalid(path, fmt::format("{} is '{}'; expected 1 to {} of A-Z a-z 0-9 _ . -", path,
                              printable(tool.name, 80), kMostNameBytes));
  if (!r.tool_set) {
    r.tool_set = std::make_shared<ToolSet>();
    r.tools = Json::array();
  }
  if (r.tool_set->find(tool.name) != nullptr)
    invalid(path, fmt::format("{} is '{}', the name of another tool", path, tool.name));
  if (tool.schema != nullptr && !tool.schema->is_object())
    wrong_type(*tool.schema, fmt::format("{}.{}", at, schema_name), "an object");
  Json schema = tool.schema != nullptr ? *tool.schema : Json::object({{"type", "object"}});
  if (schema.find("properties") == nullptr) schema.set("properties", Json::object());
  Json function = Json::object({{"name", tool.name}});
  function.set("description", tool.description.value_or(""));
  function.set("parameters", schema);
  r.tools.push(Json::object({{"type", "function"}, {"function", std::move(function)}}));
  r.tool_set->add(tool.name, std::move(schema), tool.strict);
}

void finish_tools(ApiRequest& r, const ServedModel& model, const std::string& path) {
  if (!r.tool_set) {
    if (asks_for_call(r))
      invalid(path, fmt::format("{} asks for a call, but there are no tools", path));
    r.tool_choice = ToolChoice::kNone;
    return;
  }
  if (r.tool_choice == ToolChoice::kNone) {
    r.tools = Json();
    r.tool_set.reset();
    return;
  }
  if (model.markup.tools == nullptr)
    throw ApiError(400, "no_tool_format",
                   "tools: the chat template of this model names no known format of calls; "
                   "--tool-format of the server can name one",
                   "tools");
  if (r.tool_choice == ToolChoice::kNamed && r.tool_set->find(r.tool_name) == nullptr)
    throw ApiError(400, "unknown_tool",
                   fmt::format("{}: there is no tool '{}'", path, printable(r.tool_name, 80)),
                   path);
  if (!asks_for_call(r)) return;
  if (r.format.given())
    throw ApiError(
        400, "conflict",
        fmt::format("{} and {}, which asks for a call, cannot both be given", r.format.path, path),
        r.format.path);
  if (r.generation.stop_tokens.empty() || r.generation.min_new > 0)
    invalid(path, fmt::format("{}: an answer of calls ends where they do; neither ignore_eos nor "
                              "min_tokens can be asked for",
                              path));
}

void mask_calls(GenerationRequest& g, const ApiRequest& r, const ServedModel& model) {
  // Whoever wants no end of the answer gets no masks.
  if (!g.answer || !g.answer->tools || g.stop_tokens.empty() || g.min_new > 0) return;
  CallDemand demand;
  demand.required = asks_for_call(r);
  if (r.tool_choice == ToolChoice::kNamed) demand.only = g.answer->tools->find(r.tool_name);
  try {
    g.grammar = call_grammar(*g.answer, demand, *model.tokenizer);
  } catch (const GrammarError& e) {
    throw api_error(e, "tools");
  }
}

bool read_choice_word(const Json& value, ApiRequest& r) {
  if (!value.is_string()) return false;
  const std::string& word = value.as_string();
  if (word != "none" && word != "auto" && word != "required")
    invalid("tool_choice", fmt::format("tool_choice is '{}'; expected none, auto or required",
                                       printable(word, 40)));
  r.tool_choice = word == "none"   ? ToolChoice::kNone
                  : word == "auto" ? ToolChoice::kAuto
                                   : ToolChoice::kRequired;
  return true;
}

void read_tools(const Fields& f, ApiRequest& r, const ServedModel& model) {
  r.tool_choice = ToolChoice::kAuto;
  if (const Json* tools = tool_list(f)) {
    for (size_t i = 0; i < tools->items().size(); ++i) {
      const std::string at = fmt::format("tools[{}]", i);
      const Json& tool = tools->items()[i];
      if (!tool.is_object()) wrong_type(tool, at, "an object");
      const auto type = Fields(tool, at).string("type");
      if (type && *type != "function")
        throw ApiError(
            400, "unsupported",
            fmt::format("{}.type is '{}'; only function is offered", at, printable(*type, 40)),
            at + ".type");
      const Json* function = Fields(tool, at).find("function");
      if (function == nullptr || !function->is_object())
        throw ApiError(400, "missing", at + ".function is missing", at + ".function");
      const Fields inner(*function, at + ".function");
      const auto name = inner.string("name");
      if (!name)
        throw ApiError(400, "missing", inner.path("name") + " is missing", inner.path("name"));
      add_tool(r,
               {*name, inner.string("description"), inner.find("parameters"),
                inner.boolean("strict", false)},
               at + ".function", "parameters");
    }
  }
  if (const Json* choice = f.find("tool_choice");
      choice != nullptr && !read_choice_word(*choice, r)) {
    if (!choice->is_object()) wrong_type(*choice, "tool_choice", "a string or an object");
    const Fields c(*choice, "tool_choice");
    if (c.string("type").value_or("") != "function")
      throw ApiError(400, "unsupported", "tool_choice.type: only function is offered",
                     "tool_choice.type");
    const Json* function = c.find("function");
    r.tool_choice = ToolChoice::kNamed;
    r.tool_name = function != nullptr ? text_of(*function, "name") : "";
  }
  r.parallel_calls = f.boolean("parallel_tool_calls", true);
  finish_tools(r, model, "tool_choice");
}

void repair_past_calls(Json& messages, const ServedModel& model) {
  const CallIds ids = model.markup.tools != nullptr ? model.markup.tools->ids : CallIds::kOwn;
  std::map<std::string, std::pair<std::string, std::string>> known;  // id: new id, name
  size_t count = 0;
  bool past = false;
  Json out = Json::array();
  for (const Json& message : messages.items()) {
    Json m = message;
    if (const Json* calls = message.find("tool_calls");
        calls != nullptr && !calls->items().empty()) {
      past = true;
      Json list = Json::array();
      for (const Json& call : calls->items()) {
        const Json* function = call.find("function");
        const std::string name = function != nullptr ? text_of(*function, "name") : "";
        const std::string& id = text_of(call, "id");
        std::string own = id;
        if (ids == CallIds::kNine) own = nine(id);
        if (ids == CallIds::kFunctions) own = fmt::format("functions.{}:{}", name, count);
        ++count;
        known[id] = {own, name};
        list.push(with_member(call, "id", own));
      }
      m = with_member(message, "tool_calls", std::move(list));
    } else if (text_of(message, "role") == "tool") {
      past = true;
      const std::string& id = text_of(message, "tool_call_id");
      const auto at = known.find(id);
      if (at != known.end()) {
        m = with_member(m, "tool_call_id", at->second.first);
        if (message.find("name") == nullptr) m = with_member(m, "name", at->second.second);
      } else if (ids == CallIds::kNine) {
        m = with_member(m, "tool_call_id", nine(id));
      }
    }
    out.push(std::move(m));
  }
  if (!past) return;
  if (model.templates != nullptr && model.templates->text().find("tool_calls") == std::string::npos)
    throw ApiError(400, "template_error",
                   "the chat template of this model does not print calls of tools", "messages");
  messages = std::move(out);
}

}  // namespace moebius
