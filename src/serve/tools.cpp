// SPDX-License-Identifier: Apache-2.0
#include "serve/tools.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/error.h"
#include "serve/structured.h"
#include "text/answer/answer_message.h"
#include "text/answer/call_grammar.h"
#include "text/answer/call_parser.h"
#include "text/answer/past_messages.h"

namespace moebius {
namespace {

const std::string& text_of(const Json& object, std::string_view key) {
  static const std::string none;
  const Json* v = object.find(key);
  return v != nullptr && v->is_string() ? v->as_string() : none;
}

bool asks_for_call(const ApiRequest& r) {
  return r.tool_choice == ToolChoice::kRequired || r.tool_choice == ToolChoice::kNamed;
}

}  // namespace

void each_tool(const Fields& f,
               FunctionRef<void(const Fields& tool, const std::string& path)> work) {
  const Json* tools = f.array("tools");
  for (size_t i = 0; tools != nullptr && i < tools->items().size(); ++i) {
    const std::string at = fmt::format("tools[{}]", i);
    work(fields_of(tools->items()[i], at), at);
  }
}

void add_tool(ApiRequest& r, const Fields& tool, const std::string& at,
              std::string_view schema_name) {
  const std::string name = tool.required_string("name"), path = at + ".name";
  const std::string description = tool.string("description").value_or("");
  const Json* parameters = tool.find(schema_name);
  const bool strict = tool.boolean("strict", false);
  if (!is_tool_name(name))
    invalid(path, "{} is '{}'; expected 1 to {} of A-Z a-z 0-9 _ . -", path, printable(name, 80),
            kMostNameBytes);
  if (!r.tool_set) {
    r.tool_set = std::make_shared<ToolSet>();
    r.tools = Json::array();
  }
  if (r.tool_set->find(name) != nullptr)
    invalid(path, "{} is '{}', the name of another tool", path, name);
  tool.object(schema_name);
  Json schema = parameters != nullptr ? *parameters : Json::object({{"type", "object"}});
  if (schema.find("properties") == nullptr) schema.set("properties", Json::object());
  Json function = Json::object({{"name", name}});
  function.set("description", description);
  function.set("parameters", schema);
  r.tools.push(Json::object({{"type", "function"}, {"function", std::move(function)}}));
  r.tool_set->add(name, std::move(schema), strict);
}

void finish_tools(ApiRequest& r, const ServedModel& model, const std::string& path) {
  if (!r.tool_set) {
    if (asks_for_call(r)) invalid(path, "{} asks for a call, but there are no tools", path);
    r.tool_choice = ToolChoice::kNone;
    return;
  }
  if (r.tool_choice == ToolChoice::kNone) {
    r.tools = Json();
    r.tool_set.reset();
    return;
  }
  if (model.markup.tools == nullptr)
    refuse("no_tool_format", "tools",
           "tools: the chat template of this model names no known format of calls; --tool-format "
           "of the server can name one");
  if (r.tool_choice == ToolChoice::kNamed && r.tool_set->find(r.tool_name) == nullptr)
    refuse("unknown_tool", path, "{}: there is no tool '{}'", path, printable(r.tool_name, 80));
  if (!asks_for_call(r)) return;
  if (r.format.given())
    refuse("conflict", r.format.path, "{} and {}, which asks for a call, cannot both be given",
           r.format.path, path);
  if (r.generation.stop_tokens.empty() || r.min_tokens > 0)
    invalid(path,
            "{}: an answer of calls ends where they do; neither ignore_eos nor "
            "min_tokens can be asked for",
            path);
}

void mask_calls(Request& g, const ApiRequest& r, const ServedModel& model) {
  // A request that suppresses the answer's end gets no masks.
  const auto& rules = g.text.answer;
  if (!rules || !rules->tools || g.stop_tokens.empty() || r.min_tokens > 0) return;
  CallDemand demand;
  demand.required = asks_for_call(r);
  if (r.tool_choice == ToolChoice::kNamed) demand.only = rules->tools->find(r.tool_name);
  try {
    g.text.grammar = call_grammar(*rules, demand, *model.tokenizer, r.grammar_limits);
  } catch (const GrammarError& e) {
    throw api_error(e, "tools");
  }
}

bool read_choice_word(const Json& value, ApiRequest& r) {
  if (!value.is_string()) return false;
  const std::string& word = value.as_string();
  if (word != "none" && word != "auto" && word != "required")
    invalid("tool_choice", "tool_choice is '{}'; expected none, auto or required",
            printable(word, 40));
  r.tool_choice = word == "none"   ? ToolChoice::kNone
                  : word == "auto" ? ToolChoice::kAuto
                                   : ToolChoice::kRequired;
  return true;
}

void read_tools(const Fields& f, ApiRequest& r, const ServedModel& model) {
  r.tool_choice = ToolChoice::kAuto;
  each_tool(f, [&](const Fields& tool, const std::string& at) {
    const auto type = tool.string("type");
    if (type && *type != "function")
      refuse("unsupported", at + ".type", "{}.type is '{}'; only function is offered", at,
             printable(*type, 40));
    const std::string path = at + ".function";
    const Json* function = tool.find("function");
    if (function == nullptr || !function->is_object()) missing(path);
    add_tool(r, Fields(*function, path), path, "parameters");
  });
  if (const Json* choice = f.find("tool_choice");
      choice != nullptr && !read_choice_word(*choice, r)) {
    if (!choice->is_object()) wrong_type(*choice, "tool_choice", "a string or an object");
    const Fields c(*choice, "tool_choice");
    if (c.string("type").value_or("") != "function")
      refuse("unsupported", "tool_choice.type", "tool_choice.type: only function is offered");
    const Json* function = c.find("function");
    r.tool_choice = ToolChoice::kNamed;
    r.tool_name = function != nullptr ? text_of(*function, "name") : "";
  }
  r.parallel_calls = f.boolean("parallel_tool_calls", true);
  finish_tools(r, model, "tool_choice");
}

void PastMessage::add_call(const Fields& f, std::string_view id, Json arguments) {
  calls.push(Json::object({{"id", f.required_string(id)},
                           {"type", "function"},
                           {"function", Json::object({{"name", f.required_string("name")},
                                                      {"arguments", std::move(arguments)}})}}));
}

void PastMessage::push_to(Json& messages, const std::string& role) {
  Json m = Json::object({{"role", role}});
  m.set("content", !said && !calls.items().empty() ? Json() : Json(text));
  if (!reasoning.empty()) m.set("reasoning_content", reasoning);
  if (!calls.items().empty()) m.set("tool_calls", calls);
  messages.push(std::move(m));
  *this = {};
}

void repair_past_calls(Json& messages, const ServedModel& model, const std::string& param) {
  if (!has_calls(messages)) return;
  if (model.templates != nullptr && !prints_calls(*model.templates))
    refuse("template_error", param,
           "the chat template of this model does not print calls of tools");
  const ToolFormat* format = model.markup.tools;
  messages = with_family_calls(messages, format != nullptr ? format->ids : CallIds::kOwn);
}

}  // namespace moebius
