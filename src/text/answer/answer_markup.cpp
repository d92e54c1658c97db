// SPDX-License-Identifier: Apache-2.0
#include "text/answer/answer_markup.h"

#include <algorithm>

#include "base/error.h"

namespace moebius {
namespace {

template <class Rows>
std::string names_of(const Rows& rows) {
  std::string out;
  for (const auto& row : rows) out += fmt::format(" {}", row.name);
  return out;
}

// Special tokens whose text stands in a marker.
std::vector<int32_t> special_tokens_in(const Tokenizer& tokenizer,
                                       const std::vector<std::string_view>& texts) {
  std::vector<int32_t> out;
  const auto count = static_cast<int32_t>(tokenizer.vocab_size());
  for (int32_t id = 0; id < count && !texts.empty(); ++id) {
    if (!tokenizer.is_special(id)) continue;
    const std::string token = tokenizer.id_to_token(id).value_or("");
    if (token.size() > 2 && std::any_of(texts.begin(), texts.end(), [&](std::string_view t) {
          return t.find(token) != t.npos;
        }))
      out.push_back(id);
  }
  return out;
}

}  // namespace

AnswerMarkup choose_answer_markup(const ChatTemplates& templates, const Tokenizer& tokenizer,
                                  std::string_view tools, std::string_view reasoning) {
  AnswerMarkup out;
  const std::string text = templates.text();
  if (tools == "auto")
    out.tools = recognise_tool_format(text);
  else if (tools != "none" && (out.tools = find_tool_format(tools)) == nullptr)
    fail("there is no tool format '{}'; known: auto none{}", printable(tools, 40),
         names_of(tool_formats()));
  if (reasoning == "auto")
    out.reasoning = recognise_reasoning(text);
  else if (reasoning != "none" && (out.reasoning = find_reasoning_format(reasoning)) == nullptr)
    fail("there is no form of reasoning '{}'; known: auto none{}", printable(reasoning, 40),
         names_of(reasoning_formats()));
  out.marker_tokens = std::make_shared<std::vector<int32_t>>(
      special_tokens_in(tokenizer, marker_texts(out.tools, out.reasoning)));
  if (out.tools != nullptr && !out.tools->stop_tokens.empty())
    out.stop_tokens = special_tokens_in(tokenizer, {out.tools->stop_tokens});
  return out;
}

std::shared_ptr<AnswerRules> AnswerMarkup::rules(std::shared_ptr<const ToolSet> tool_set,
                                                 std::string_view prompt) const {
  if (reasoning == nullptr && !tool_set) return nullptr;
  auto r = std::make_shared<AnswerRules>();
  r->reasoning = reasoning;
  r->format = tool_set ? tools : nullptr;
  r->tools = std::move(tool_set);
  r->start = answer_start(reasoning, prompt);
  r->marker_tokens = marker_tokens;
  return r;
}

}  // namespace moebius
