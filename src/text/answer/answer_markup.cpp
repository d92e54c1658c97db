// SPDX-License-Identifier: Apache-2.0
#include "text/answer/answer_markup.h"

#include <algorithm>

#include "base/error.h"
#include "text/answer/answer_message.h"
#include "text/answer/past_messages.h"
#include "text/answer/splitter.h"

namespace moebius {
namespace {

template <class Rows>
std::string names_of(const Rows& rows) {
  std::string out;
  for (const auto& row : rows) out += fmt::format(" {}", row.name);
  return out;
}

// Returns the special tokens whose text is part of a marker.
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

constexpr const char* kProbeTool = "get_weather";
constexpr const char* kProbeTools =
    R"([{"type":"function","function":{"name":"get_weather","description":"","parameters":{"type":"object","properties":{"city":{"type":"string","description":""},"days":{"type":"integer","description":""}},"required":["city"]}}}])";
constexpr const char* kProbeMessages =
    R"([{"role":"user","content":"Weather?"},{"role":"assistant","content":"","tool_calls":[{"id":"functions.get_weather:0","type":"function","function":{"name":"get_weather","arguments":{"city":"Oslo","days":2}}}]}])";

// Returns where the marker at `at` begins: its first bytes may end the prompt, as of "<think>" and
// "<tool_call>".
size_t begin_of_marker(std::string_view text, size_t at) {
  const size_t open = text.substr(0, at).find_last_of("<[");
  if (open == text.npos) return at;
  const char close = text[open] == '<' ? '>' : ']';
  return text.substr(open, at - open).find(close) == text.npos ? open : at;
}

// Returns what the template prints after its prompt for an answer with a call; empty if it cannot
// print one.
std::string printed_call(const ChatTemplates& templates, CallIds ids) {
  const Json all = with_family_calls(parse_json(kProbeMessages, "probe"), ids);
  const Json tools = parse_json(kProbeTools, "probe");
  Json question = Json::array();
  question.push(all.items()[0]);
  ChatInput asked, answered;
  asked.messages = &question;
  answered.messages = &all;
  asked.tools = answered.tools = &tools;
  asked.now = answered.now = 0;
  answered.add_generation_prompt = false;
  const auto text = [&](const ChatInput& input) {
    std::string out;
    for (const TextSegment& s : render_filled(templates, input)) out += s.text;
    return out;
  };
  try {
    const std::string prompt = text(asked), whole = text(answered);
    const auto differ =
        std::mismatch(whole.begin(), whole.end(), prompt.begin(), prompt.end()).first;
    const auto at = static_cast<size_t>(differ - whole.begin());
    return whole.substr(begin_of_marker(whole, at));
  } catch (const Error&) {
    return {};
  }
}

// Tells how well a format reads a printed call: not at all, only its name, or all of it.
enum class Reading : uint8_t { kNone, kName, kWhole };

Reading reading_of(const ToolFormat& format, const std::string& printed) {
  auto rules = std::make_shared<AnswerRules>();
  rules->format = &format;
  rules->tools = tool_set_of(parse_json(kProbeTools, "probe"));
  rules->start = AnswerStart::kContent;
  AnswerSplitter splitter(rules);
  AnswerEvents events;
  splitter.push(printed, events);
  splitter.finish(false, events);
  std::string name, arguments;
  bool whole = false;
  for (const AnswerEvent& e : events) {
    if (e.kind == AnswerEvent::Kind::kCallBegin) name = e.text;
    if (e.kind == AnswerEvent::Kind::kCallArguments) arguments += e.text;
    if (e.kind == AnswerEvent::Kind::kCallEnd) whole = e.whole;
  }
  if (name != kProbeTool) return Reading::kNone;
  if (!whole) return Reading::kName;
  const Json given = parse_json(arguments, "arguments");
  const Json *city = given.find("city"), *days = given.find("days");
  const bool same = given.members().size() == 2 && city != nullptr && city->is_string() &&
                    city->as_string() == "Oslo" && days != nullptr && days->is_integer() &&
                    days->as_int() == 2;
  return same ? Reading::kWhole : Reading::kName;
}

// Finds the format of a template's calls. The template's words may belong to another format than
// the one they suggest: what it prints for a past call is what the model writes, and decides.
// Arguments need not be right for the format that the words name, because some templates print them
// without quotes. A template that prints no call is taken by its words.
const ToolFormat* recognise_by_print(const ChatTemplates& templates) {
  const ToolFormat* named = recognise_tool_format(templates.text());
  if (!prints_calls(templates)) return named;
  const std::string printed =
      printed_call(templates, named != nullptr ? named->ids : CallIds::kOwn);
  if (printed.find(kProbeTool) == std::string::npos) return named;
  if (named != nullptr && reading_of(*named, printed) != Reading::kNone) return named;
  const auto formats = tool_formats();
  const auto at = std::find_if(formats.begin(), formats.end(), [&](const ToolFormat& f) {
    return reading_of(f, printed) == Reading::kWhole;
  });
  return at != formats.end() ? &*at : nullptr;
}

}  // namespace

const ToolFormat* choose_tool_format(const ChatTemplates& templates, std::string_view name) {
  if (name == "auto") return recognise_by_print(templates);
  if (name == "none") return nullptr;
  const ToolFormat* format = find_tool_format(name);
  if (format == nullptr)
    fail("there is no tool format '{}'; known: auto none{}", printable(name, 40),
         names_of(tool_formats()));
  return format;
}

AnswerMarkup choose_answer_markup(const ChatTemplates& templates, const Tokenizer& tokenizer,
                                  std::string_view tools, std::string_view reasoning) {
  AnswerMarkup out;
  out.tools = choose_tool_format(templates, tools);
  if (reasoning == "auto")
    out.reasoning = recognise_reasoning(templates.text());
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
