// SPDX-License-Identifier: Apache-2.0
#include "text/answer/answer_message.h"

#include "base/error.h"
#include "text/choice_text.h"

namespace moebius {

std::shared_ptr<ToolSet> tool_set_of(const Json& tools) {
  if (tools.is_null()) return nullptr;
  if (!tools.is_array()) fail("tools are {}; expected an array", kind_name(tools.kind()));
  auto set = std::make_shared<ToolSet>();
  for (size_t i = 0; i < tools.items().size(); ++i) {
    const Json& tool = tools.items()[i];
    const Json* function = tool.find("function");
    const Json& inner = function != nullptr ? *function : tool;
    const Json *name = inner.find("name"), *schema = inner.find("parameters");
    if (name == nullptr || !name->is_string()) fail("tools[{}] has no name", i);
    set->add(name->as_string(), schema != nullptr ? *schema : Json(), false);
  }
  return set;
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
