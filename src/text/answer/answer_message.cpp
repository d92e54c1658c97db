// SPDX-License-Identifier: Apache-2.0
#include "text/answer/answer_message.h"

#include <algorithm>

#include "base/error.h"
#include "text/answer/call_parser.h"
#include "text/choice_text.h"

namespace moebius {

namespace {

constexpr size_t kEndTokens = 64;

// Returns the function of a tool in either form, bare or as the member "function".
const Json& function_of(const Json& tool) {
  const Json* function = tool.find("function");
  return function != nullptr ? *function : tool;
}

}  // namespace

bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kMostNameBytes &&
         std::all_of(name.begin(), name.end(), is_name_byte);
}

std::shared_ptr<ToolSet> tool_set_of(const Json& tools) {
  if (tools.is_null()) return nullptr;
  if (!tools.is_array()) fail("tools are {}; expected an array", kind_name(tools.kind()));
  auto set = std::make_shared<ToolSet>();
  for (size_t i = 0; i < tools.items().size(); ++i) {
    const Json& inner = function_of(tools.items()[i]);
    const Json *name = inner.find("name"), *schema = inner.find("parameters"),
               *strict = inner.find("strict");
    if (name == nullptr || !name->is_string()) fail("tools[{}] has no name", i);
    if (!is_tool_name(name->as_string()))
      fail("the name of tools[{}] is '{}'; expected 1 to {} of A-Z a-z 0-9 _ . -", i,
           printable(name->as_string(), 80), kMostNameBytes);
    if (set->find(name->as_string()) != nullptr)
      fail("the name of tools[{}] is '{}', that of another tool", i, name->as_string());
    if (schema != nullptr && !schema->is_object() && !schema->is_null())
      fail("the parameters of tools[{}] are {}; expected an object", i, kind_name(schema->kind()));
    set->add(name->as_string(), schema != nullptr ? *schema : Json(),
             strict != nullptr && strict->is_bool() && strict->as_bool());
  }
  return set;
}

Json template_tools(const Json& tools) {
  Json out = Json::array();
  for (const Json& tool : tools.items())
    out.push(tool.find("function") != nullptr
                 ? tool
                 : Json::object({{"type", "function"}, {"function", tool}}));
  return out;
}

std::string prompt_end(const Tokenizer& tokenizer, std::span<const int32_t> prompt) {
  return tokenizer.decode(prompt.last(std::min(prompt.size(), kEndTokens)), false);
}

Json message_of(const AnswerMarkup& markup, const AnswerEvents& events) {
  using Kind = AnswerEvent::Kind;
  std::string content, reasoning;
  struct Call {
    std::string id, name, arguments;
  };
  std::vector<Call> list;
  const bool nine = markup.tools != nullptr && markup.tools->ids == CallIds::kNine;
  for (const AnswerEvent& e : events) {
    if (e.kind == Kind::kContent) content += e.text;
    if (e.kind == Kind::kReasoning) reasoning += e.text;
    if (e.kind == Kind::kCallBegin)
      list.push_back({!e.id.empty() ? e.id
                      : nine        ? fmt::format("{:09}", e.call)
                                    : fmt::format("call_{}", e.call),
                      e.text, ""});
    if (e.kind == Kind::kCallArguments) list[e.call].arguments += e.text;
  }
  Json message = Json::object({{"role", "assistant"}});
  message.set("content", content.empty() && !list.empty() ? Json() : Json(content));
  if (!reasoning.empty()) message.set("reasoning_content", reasoning);
  if (list.empty()) return message;
  Json out = Json::array();
  for (const Call& c : list)
    out.push(
        Json::object({{"id", c.id},
                      {"type", "function"},
                      {"function", Json::object({{"name", c.name}, {"arguments", c.arguments}})}}));
  message.set("tool_calls", std::move(out));
  return message;
}

AnswerEvents events_of(const AnswerMarkup& markup, const Tokenizer& tokenizer,
                       std::shared_ptr<const ToolSet> tools, std::string_view prompt,
                       std::span<const int32_t> ids, bool ended) {
  if (tools && markup.tools == nullptr)
    fail("the chat template names no known format of calls, so tools cannot be called");
  TextRules rules;
  rules.answer = markup.rules(std::move(tools), prompt);
  ChoiceText text(tokenizer, rules);
  std::string plain;
  for (const int32_t id : ids) plain += text.push(id);
  plain += text.finish(!ended);
  if (rules.answer) return text.take_events();
  AnswerEvents out;
  add_event(out, {AnswerEvent::Kind::kContent, plain, 0, ""});
  return out;
}

}  // namespace moebius
