// SPDX-License-Identifier: Apache-2.0
#include "text/answer/tool_format.h"

#include <algorithm>

namespace moebius {
namespace {

// clang-format off
constexpr std::string_view kObjectName = "{\"name\": \"", kObjectArguments = "\", \"arguments\": ";
constexpr ToolFormat kFormats[] = {
    {.name = "hermes", .families = "Qwen2.5, Qwen3, QwQ", .layout = CallLayout::kObject, .calls = SectionCalls::kOne,
     .section_begin = "<tool_call>", .section_end = "</tool_call>", .comma = "\n", .call_open = "\n", .call_close = "\n",
     .name_begin = kObjectName, .name_end = kObjectArguments, .arguments_close = "}"},
    {.name = "qwen3_coder", .families = "Qwen3-Coder, Qwen3.5", .layout = CallLayout::kTagged, .calls = SectionCalls::kOne,
     .section_begin = "<tool_call>", .section_end = "</tool_call>", .comma = "\n",
     .call_begin = "<function=", .call_end = "</function>", .call_open = "\n", .call_close = "\n", .name_end = ">", .arguments_open = "\n",
     .key_begin = "<parameter=", .key_end = ">", .value_end = "</parameter>", .argument_close = "\n", .line_feed = "\n"},
    {.name = "glm45", .families = "GLM-4.5, GLM-4.6", .layout = CallLayout::kTagged, .calls = SectionCalls::kOne,
     .section_begin = "<tool_call>", .comma = "\n", .call_end = "</tool_call>",
     .name_ends = {"\n", "<arg_key>", "</tool_call>"}, .arguments_close = "\n",
     .key_begin = "<arg_key>", .key_end = "</arg_key>", .key_close = "\n", .value_begin = "<arg_value>", .value_end = "</arg_value>",
     .argument_open = "\n"},
    {.name = "glm47", .families = "GLM-4.7 and later", .layout = CallLayout::kTagged, .calls = SectionCalls::kOne,
     .section_begin = "<tool_call>", .call_end = "</tool_call>", .name_ends = {"\n", "<arg_key>", "</tool_call>"},
     .key_begin = "<arg_key>", .key_end = "</arg_key>", .value_begin = "<arg_value>", .value_end = "</arg_value>"},
    {.name = "hy3", .families = "Hy3", .layout = CallLayout::kTagged,
     .section_begin = "<tool_calls:opensource>", .section_end = "</tool_calls:opensource>", .section_open = "\n",
     .call_begin = "<tool_call:opensource>", .call_end = "</tool_call:opensource>", .call_close = "\n",
     .name_end = "<tool_sep:opensource>", .arguments_open = "\n",
     .key_begin = "<arg_key:opensource>", .key_end = "</arg_key:opensource>", .key_close = "\n",
     .value_begin = "<arg_value:opensource>", .value_end = "</arg_value:opensource>", .argument_close = "\n"},
    {.name = "hy3_preview", .families = "Hy3-preview", .layout = CallLayout::kTagged,
     .section_begin = "<tool_calls>", .section_end = "</tool_calls>", .section_open = "\n",
     .call_begin = "<tool_call>", .call_end = "</tool_call>", .call_close = "\n", .name_end = "<tool_sep>", .arguments_open = "\n",
     .key_begin = "<arg_key>", .key_end = "</arg_key>", .key_close = "\n", .value_begin = "<arg_value>", .value_end = "</arg_value>",
     .argument_close = "\n"},
    {.name = "kimi_k2", .families = "Kimi-K2", .layout = CallLayout::kNamed,
     .section_begin = "<|tool_calls_section_begin|>", .section_end = "<|tool_calls_section_end|>",
     .call_begin = "<|tool_call_begin|>", .call_end = "<|tool_call_end|>", .name_begin = "functions.",
     .name_end = "<|tool_call_argument_begin|>", .number_begin = ":", .number_end = "<|tool_call_argument_begin|>",
     .ids = CallIds::kFunctions},
    {.name = "kimi_k3", .families = "Kimi-K3", .layout = CallLayout::kTagged,
     .section_begin = "<|open|>tools<|sep|>", .section_end = "<|close|>tools<|sep|>",
     .call_begin = "<|open|>call tool=\"", .call_end = "<|close|>call<|sep|>",
     .name_end = "\"", .number_begin = "\" index=\"", .number_end = "\"<|sep|>", .name_ends = {"\""},
     .key_begin = "<|open|>argument key=\"", .key_end = "\" type=\"", .value_end = "<|close|>argument<|sep|>",
     .tag_end = "<|sep|>", .type_end = "\"<|sep|>", .type_words = true, .other_markers = {"think", "response", "tools", "argument"}},
    {.name = "deepseek_v31", .families = "DeepSeek-V3.1", .layout = CallLayout::kNamed,
     .section_begin = "<｜tool▁calls▁begin｜>", .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>", .call_end = "<｜tool▁call▁end｜>", .name_end = "<｜tool▁sep｜>"},
    {.name = "deepseek_v3", .families = "DeepSeek-V3, R1-0528", .layout = CallLayout::kNamed,
     .section_begin = "<｜tool▁calls▁begin｜>", .section_end = "<｜tool▁calls▁end｜>",
     .call_begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>", .call_end = "<｜tool▁call▁end｜>",
     .name_end = "\n```json\n", .name_ends = {"\n"}, .arguments_close = "\n```", .trigger = "<｜tool▁call▁begin｜>"},
    {.name = "deepseek_v32", .families = "DeepSeek-V3.2", .layout = CallLayout::kTagged,
     .section_begin = "<｜DSML｜function_calls>", .section_end = "</｜DSML｜function_calls>", .section_open = "\n",
     .call_begin = "<｜DSML｜invoke name=\"", .call_end = "</｜DSML｜invoke>", .call_close = "\n", .name_end = "\">", .arguments_open = "\n",
     .key_begin = "<｜DSML｜parameter name=\"", .key_end = "\" string=\"", .value_end = "</｜DSML｜parameter>", .argument_close = "\n",
     .type_end = "\">", .other_markers = {"function_calls>", "tool_calls>", "invoke>", "parameter"}},
    {.name = "deepseek_v4", .families = "DeepSeek-V4", .layout = CallLayout::kTagged,
     .section_begin = "<｜DSML｜tool_calls>", .section_end = "</｜DSML｜tool_calls>", .section_open = "\n",
     .call_begin = "<｜DSML｜invoke name=\"", .call_end = "</｜DSML｜invoke>", .call_close = "\n", .name_end = "\">", .arguments_open = "\n",
     .key_begin = "<｜DSML｜parameter name=\"", .key_end = "\" string=\"", .value_end = "</｜DSML｜parameter>", .argument_close = "\n",
     .type_end = "\">", .other_markers = {"function_calls>", "tool_calls>", "invoke>", "parameter"}},
    {.name = "harmony", .families = "GPT-OSS", .layout = CallLayout::kChannels, .calls = SectionCalls::kNone,
     .section_begin = "<|channel|>", .section_end = "<|call|>", .call_begin = "<|channel|>",
     .name_begin = "commentary to=functions.", .name_end = " <|constrain|>json<|message|>",
     .name_ends = {" ", "<|channel|>", "<|message|>"}, .trigger = " to=functions.", .stop_tokens = "<|call|> <|return|>"},
    {.name = "minimax_m1", .families = "MiniMax-M1", .layout = CallLayout::kObject,
     .section_begin = "<tool_calls>", .section_end = "</tool_calls>", .section_close = "\n", .call_open = "\n",
     .name_begin = kObjectName, .name_end = kObjectArguments, .arguments_close = "}"},
    {.name = "minimax_m2", .families = "MiniMax-M2", .layout = CallLayout::kTagged,
     .section_begin = "<minimax:tool_call>", .section_end = "</minimax:tool_call>", .section_open = "\n",
     .call_begin = "<invoke name=\"", .call_end = "</invoke>", .call_close = "\n", .name_end = "\">", .arguments_open = "\n",
     .key_begin = "<parameter name=\"", .key_end = "\">", .value_end = "</parameter>", .argument_close = "\n"},
    {.name = "minimax_m3", .families = "MiniMax-M3", .layout = CallLayout::kElements,
     .section_begin = "]<]minimax[>[<tool_call>", .section_end = "]<]minimax[>[</tool_call>", .section_open = "\n",
     .call_begin = "]<]minimax[>[<invoke name=\"", .call_end = "]<]minimax[>[</invoke>", .call_close = "\n", .name_end = "\">",
     .key_begin = "]<]minimax[>[<", .key_end = ">", .mark = "]<]minimax[>[", .other_markers = {"<tool_call>", "</", "<item>"}},
    {.name = "gemma4", .families = "Gemma-4", .layout = CallLayout::kGemma, .calls = SectionCalls::kOne,
     .section_begin = "<|tool_call>", .section_end = "<tool_call|>", .name_begin = "call:", .name_ends = {"{"}, .mark = "<|\"|>"},
    {.name = "nemotron_v2", .families = "Nemotron-Nano-v2", .layout = CallLayout::kObject,
     .section_begin = "<TOOLCALL>", .section_end = "</TOOLCALL>", .section_open = "[", .section_close = "]", .comma = ", ",
     .name_begin = kObjectName, .name_end = kObjectArguments, .arguments_close = "}"},
    {.name = "lfm2", .families = "LFM2, LFM2.5", .layout = CallLayout::kPythonic,
     .section_begin = "<|tool_call_start|>", .section_end = "<|tool_call_end|>", .section_open = "[", .section_close = "]",
     .comma = ", ", .name_end = "(", .arguments_close = ")", .unmarked = '['},
    {.name = "pythonic", .families = "Llama-4", .layout = CallLayout::kPythonic,
     .section_begin = "<|python_start|>", .section_end = "<|python_end|>", .section_open = "[", .section_close = "]",
     .comma = ", ", .name_end = "(", .arguments_close = ")", .unmarked = '['},
    {.name = "llama3_json", .families = "Llama-3.1", .layout = CallLayout::kObject, .calls = SectionCalls::kNone,
     .section_begin = "<|python_tag|>", .name_begin = kObjectName, .name_end = "\", \"parameters\": ", .arguments_close = "}",
     .unmarked = '{'},
    {.name = "mistral", .families = "Mistral, new", .layout = CallLayout::kNamed, .calls = SectionCalls::kOne,
     .section_begin = "[TOOL_CALLS]", .name_end = "[ARGS]", .name_ends = {"[CALL_ID]", "[ARGS]"}, .ids = CallIds::kNine},
    {.name = "mistral_old", .families = "Mistral, old", .layout = CallLayout::kObject,
     .section_begin = "[TOOL_CALLS]", .section_open = "[", .section_close = "]", .comma = ", ",
     .name_begin = kObjectName, .name_end = kObjectArguments, .arguments_close = "}", .ids = CallIds::kNine},
};

constexpr ReasoningFormat kReasoning[] = {
    {"think", "<think>", "</think>", "</think>"},
    {"harmony", "<|channel|>analysis<|message|>", "<|end|>", "<|end|><|start|>assistant<|channel|>final<|message|>",
     {}, {}, {}, true},
    {"mistral", "[THINK]", "[/THINK]", "[/THINK]"},
    {"hy3", "<think:opensource>", "</think:opensource>", "</think:opensource>"},
    {"minimax_m3", "<mm:think>", "</mm:think>", "</mm:think>"},
    {"gemma4", "<|channel>thought\n", "<channel|>", "<channel|>"},
    {"kimi_k3", "<|open|>think<|sep|>", "<|close|>think<|sep|>", "<|close|>think<|sep|>",
     "<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"},
};
// clang-format on

template <class Row>
const Row* row_named(std::span<const Row> rows, std::string_view name) {
  const auto at =
      std::find_if(rows.begin(), rows.end(), [&](const Row& r) { return r.name == name; });
  return at != rows.end() ? &*at : nullptr;
}

constexpr std::pair<std::string_view, JsonKinds> kKindNames[] = {
    {"string", kStringKind}, {"integer", kNumberKind}, {"number", kNumberKind},
    {"boolean", kBoolKind},  {"null", kNullKind},      {"object", kObjectKind},
    {"array", kArrayKind}};

JsonKinds kinds_of_name(const Json& name) {
  for (const auto& [word, kind] : kKindNames)
    if (name.is_string() && name.as_string() == word) return kind;
  return 0;
}

JsonKinds kind_of_value(const Json& v) {
  if (v.is_string()) return kStringKind;
  if (v.is_number()) return kNumberKind;
  if (v.is_bool()) return kBoolKind;
  if (v.is_array()) return kArrayKind;
  return v.is_object() ? kObjectKind : kNullKind;
}

JsonKinds kinds_below(const Json& schema, size_t depth) {
  JsonKinds kinds = 0;
  if (const Json* type = schema.find("type")) {
    if (!type->is_array()) return kinds_of_name(*type);
    for (const Json& t : type->items()) kinds |= kinds_of_name(t);
    return kinds;
  }
  if (const Json* value = schema.find("const")) return kind_of_value(*value);
  if (const Json* values = schema.find("enum"))
    for (const Json& v : values->items()) kinds |= kind_of_value(v);
  for (const char* word : {"anyOf", "oneOf"}) {
    const Json* ways = schema.find(word);
    if (ways == nullptr || depth == 0) continue;
    for (const Json& way : ways->items()) {
      const JsonKinds more = kinds_below(way, depth - 1);
      if (more == 0) return 0;
      kinds |= more;
    }
  }
  return kinds;
}

}  // namespace

std::span<const ToolFormat> tool_formats() { return kFormats; }
std::span<const ReasoningFormat> reasoning_formats() { return kReasoning; }
const ToolFormat* find_tool_format(std::string_view name) {
  return row_named(tool_formats(), name);
}
const ReasoningFormat* find_reasoning_format(std::string_view name) {
  return row_named(reasoning_formats(), name);
}

const ToolFormat* recognise_tool_format(std::string_view text) {
  const auto has = [&](std::string_view s) { return text.find(s) != text.npos; };
  const auto format = [](std::string_view name) { return find_tool_format(name); };
  if (has("<|tool_calls_section_begin|>")) return format("kimi_k2");
  if (has("<|open|>") && has("<|sep|>")) return format("kimi_k3");
  if (has("DSML")) return format(has("function_calls") ? "deepseek_v32" : "deepseek_v4");
  if (has("<｜tool▁calls▁begin｜>"))
    return format(has("function<｜tool▁sep｜>") || has("```json") ? "deepseek_v3" : "deepseek_v31");
  if (has("<|channel|>")) return format("harmony");
  if (has("<minimax:tool_call>")) return format("minimax_m2");
  if (has("]<]minimax[>[")) return format("minimax_m3");
  if (has("<|tool_call>call:")) return format("gemma4");
  if (has("<TOOLCALL>")) return format("nemotron_v2");
  if (has("<|tool_call_start|>") || has("<|tool_list_start|>")) return format("lfm2");
  if (has("<tool_sep>")) return format("hy3_preview");
  if (has("<tool_sep:opensource>") || has("<tool_sep{}>")) return format("hy3");
  // A template may write the line feed between key and value as text or as an escape.
  if (has("<arg_key>"))
    return format(has("</arg_key>\n") || has("</arg_key>\\n") ? "glm45" : "glm47");
  if (has("<function=")) return format("qwen3_coder");
  if (has("[ARGS]")) return format("mistral");
  if (has("[TOOL_CALLS]")) return format("mistral_old");
  if (has("<|python_start|>") || has("[func_name1(")) return format("pythonic");
  if (has("<tool_call>") && has("\"arguments\"")) return format("hermes");
  if (has("<tool_calls>") && has("\"arguments\"")) return format("minimax_m1");
  if (has("\"parameters\"") && has("tools")) return format("llama3_json");
  return nullptr;
}

const ReasoningFormat* recognise_reasoning(std::string_view text) {
  const auto has = [&](std::string_view s) { return text.find(s) != text.npos; };
  if (has("<|channel|>")) return find_reasoning_format("harmony");
  if (has("<|channel>thought")) return find_reasoning_format("gemma4");
  if (has("<|open|>") && has("<|sep|>")) return find_reasoning_format("kimi_k3");
  if (has("<mm:think>")) return find_reasoning_format("minimax_m3");
  if (has("<think:opensource>") || has("<think{}>")) return find_reasoning_format("hy3");
  if (has("<think>") || has("</think>")) return find_reasoning_format("think");
  if (has("[THINK]")) return find_reasoning_format("mistral");
  return nullptr;
}

bool has_channels(const ToolFormat* f, const ReasoningFormat* r) {
  return (r != nullptr && r->channels) || (f != nullptr && f->layout == CallLayout::kChannels);
}

const ReasoningFormat* framed_by(const ToolFormat* f, const ReasoningFormat* r) {
  if (r == nullptr && f != nullptr) r = find_reasoning_format(f->name);
  return r != nullptr && !r->content_begin.empty() ? r : nullptr;
}

JsonKinds kinds_of_schema(const Json& schema) { return kinds_below(schema, 4); }

void ToolSet::add(std::string name, Json schema, bool strict) {
  Tool tool{std::move(name), strict, std::move(schema), {}};
  if (const Json* properties = tool.schema.find("properties"))
    for (const auto& [key, value] : properties->members())
      tool.parameters.emplace(key, kinds_of_schema(value));
  tools_.push_back(std::move(tool));
}

const Tool* ToolSet::find(std::string_view name) const {
  const auto at =
      std::find_if(tools_.begin(), tools_.end(), [&](const Tool& t) { return t.name == name; });
  return at != tools_.end() ? &*at : nullptr;
}

std::vector<std::string_view> marker_texts(const ToolFormat* f, const ReasoningFormat* r) {
  std::vector<std::string_view> out;
  if (f != nullptr)
    out = {f->section_begin, f->section_end, f->call_begin,  f->call_end,  f->name_end,
           f->key_begin,     f->key_end,     f->value_begin, f->value_end, f->stop_tokens,
           f->tag_end,       f->type_end,    f->mark};
  if (f != nullptr && f->ids == CallIds::kNine) out.push_back("[CALL_ID]");
  if (r != nullptr) out.insert(out.end(), {r->begin, r->end, r->cut});
  if (const ReasoningFormat* around = framed_by(f, r))
    out.insert(out.end(), {around->content_begin, around->content_end, around->message_end});
  if (has_channels(f, r))
    out.push_back("<|start|><|channel|><|constrain|><|message|><|end|><|call|><|return|>");
  std::erase(out, std::string_view());
  return out;
}

AnswerStart answer_start(const ReasoningFormat* reasoning, std::string_view prompt) {
  if (reasoning == nullptr) return AnswerStart::kContent;
  const auto without_space = [](std::string_view text) {
    while (!text.empty() && std::string_view(" \t\r\n").find(text.back()) != text.npos)
      text.remove_suffix(1);
    return text;
  };
  prompt = without_space(prompt);
  if (prompt.ends_with(without_space(reasoning->begin))) return AnswerStart::kReasoning;
  if (prompt.ends_with(reasoning->end)) return AnswerStart::kContent;
  if (!reasoning->content_begin.empty() && prompt.ends_with(reasoning->content_begin))
    return AnswerStart::kContent;
  return AnswerStart::kUndecided;
}

}  // namespace moebius
