// SPDX-License-Identifier: Apache-2.0
#include "serve/body_fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "serve/api_error.h"
#include "serve/request.h"

namespace moebius {
namespace {

constexpr auto kChat = static_cast<unsigned>(Endpoint::kChat);
constexpr auto kCompletion = static_cast<unsigned>(Endpoint::kCompletion);
constexpr auto kTokenize = static_cast<unsigned>(Endpoint::kTokenize);
constexpr auto kDetokenize = static_cast<unsigned>(Endpoint::kDetokenize);
constexpr auto kAnthropic = static_cast<unsigned>(Endpoint::kMessages);
constexpr auto kResponses = static_cast<unsigned>(Endpoint::kResponses);
constexpr auto kEmbeddings = static_cast<unsigned>(Endpoint::kEmbeddings);
constexpr auto kRerank = static_cast<unsigned>(Endpoint::kRerank);
constexpr unsigned kPooled = kEmbeddings | kRerank;
constexpr unsigned kBoth = kChat | kCompletion, kMessages = kChat | kTokenize;
constexpr unsigned kGenerating = kBoth | kAnthropic | kResponses;
constexpr unsigned kAll = kGenerating | kTokenize | kDetokenize | kPooled;

constexpr std::string_view kNames[] = {"chat",     "completion", "tokenize",   "detokenize",
                                       "messages", "responses",  "embeddings", "rerank"};
static_assert(std::size(kNames) == kEndpoints && kAll == (1u << kEndpoints) - 1);

constexpr BodyField any(std::string_view name, unsigned endpoints, std::string_view schema = "{}") {
  return {.name = name, .endpoints = endpoints, .schema = schema};
}
// A list or an object.
constexpr BodyField list(std::string_view name, unsigned endpoints, size_t most,
                         std::string_view schema) {
  return {.name = name, .endpoints = endpoints, .most = most, .schema = schema};
}
constexpr BodyField flag(std::string_view name, unsigned endpoints) {
  return {.name = name, .endpoints = endpoints, .kind = FieldKind::kBoolean};
}
constexpr BodyField text(std::string_view name, unsigned endpoints, std::string_view schema = "") {
  return {.name = name, .endpoints = endpoints, .kind = FieldKind::kString, .schema = schema};
}
constexpr BodyField real(std::string_view name, unsigned endpoints, double least, double greatest) {
  return {.name = name,
          .endpoints = endpoints,
          .kind = FieldKind::kNumber,
          .least = least,
          .greatest = greatest};
}
constexpr BodyField integer(std::string_view name, unsigned endpoints, int64_t least,
                            int64_t greatest) {
  return {.name = name,
          .endpoints = endpoints,
          .kind = FieldKind::kInteger,
          .least_integer = least,
          .greatest_integer = greatest};
}
constexpr BodyField lists(std::string_view name, unsigned endpoints, FieldKind kind, size_t most,
                          std::string_view schema) {
  return {.name = name, .endpoints = endpoints, .kind = kind, .most = most, .schema = schema};
}
// A field that only the reader of the endpoint refuses, if it asks for something.
constexpr BodyField outline(std::string_view name, unsigned endpoints) {
  return {.name = name, .endpoints = endpoints, .kind = FieldKind::kOutline};
}
constexpr BodyField demanded(BodyField field) {
  field.needed = true;
  return field;
}
// Fields that are refused in the same words, by their names separated by spaces.
constexpr BodyField refused(std::string_view names, unsigned endpoints, std::string_view words,
                            Off off = Off::kNever, double number = 0, std::string_view of = {}) {
  return {.name = names,
          .endpoints = endpoints,
          .kind = FieldKind::kOutline,
          .words = words,
          .off = off,
          .number = number,
          .of = of};
}
// A number of SamplingParams. Other servers write -1 for an integer without effect.
template <class T>
constexpr BodyField sampling(std::string_view name, double least, double greatest) {
  if (std::is_integral_v<T>) return integer(name, kGenerating, -1, static_cast<int64_t>(greatest));
  return real(name, kGenerating, least, greatest);
}

constexpr int64_t kMostTokens = int64_t{1} << 31;
constexpr int64_t kMostLogprobs = 20, kMostChoices = 16;

// JSON schemas of values that their kind does not describe.
constexpr std::string_view kObject = R"({"type":"object"})", kArray = R"({"type":"array"})";
constexpr std::string_view kName = R"({"type":"string","maxLength":1024})";
constexpr std::string_view kSeed = R"({"type":"integer","format":"int64"})";
constexpr std::string_view kChatMessages =
    R"({"type":"array","minItems":1,"maxItems":4096,"items":{"$ref":"#/components/schemas/Message"}})";
constexpr std::string_view kPrompt =
    R"({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":128,"items":{"type":"string"}},)"
    R"({"type":"array","minItems":1,"items":{"type":"integer","minimum":0,"maximum":2147483647}},)"
    R"({"type":"array","minItems":1,"maxItems":128,"items":{"type":"array","minItems":1,)"
    R"("items":{"type":"integer","minimum":0,"maximum":2147483647}}}]})";
constexpr std::string_view kTexts =
    R"({"anyOf":[{"type":"string"},{"type":"array","minItems":1,"maxItems":2048,"items":{"type":"string"}},)"
    R"({"type":"array","items":{"type":"integer","minimum":0}},)"
    R"({"type":"array","items":{"type":"array","items":{"type":"integer","minimum":0}}}]})";
constexpr std::string_view kDocuments =
    R"({"type":"array","minItems":1,"maxItems":2048,"items":{"anyOf":[{"type":"string"},)"
    R"({"type":"object","required":["text"],"properties":{"text":{"type":"string"}}}]}})";
constexpr std::string_view kStops =
    R"({"anyOf":[{"type":"string","minLength":1,"maxLength":256},)"
    R"({"type":"array","maxItems":32,"items":{"type":"string","minLength":1,"maxLength":256}}]})";
constexpr std::string_view kBias =
    R"({"type":"object","maxProperties":1024,)"
    R"("additionalProperties":{"type":"number","minimum":-100,"maximum":100}})";
constexpr std::string_view kIdList =
    R"({"type":"array","maxItems":1024,"items":{"type":"integer","minimum":0}})";
constexpr std::string_view kAllowed =
    R"({"type":"array","minItems":1,"maxItems":16384,"items":{"type":"integer","minimum":0}})";
constexpr std::string_view kWords =
    R"({"type":"array","maxItems":128,"items":{"type":"string","minLength":1,"maxLength":32}})";
constexpr std::string_view kStreamOptions =
    R"({"type":"object","properties":{"include_usage":{"anyOf":[{"type":"boolean"},{"type":"null"}]},)"
    R"("continuous_usage_stats":{"anyOf":[{"type":"boolean"},{"type":"null"}]}}})";
constexpr std::string_view kSpeculate =
    R"({"anyOf":[{"type":"boolean"},{"type":"object","properties":{"max":)"
    R"({"type":"integer","minimum":0,"maximum":16}}}]})";
constexpr std::string_view kFormat =
    R"({"type":"object","required":["type"],"properties":{"type":{"enum":["text","json_object","json_schema"]},)"
    R"("json_schema":{"type":"object","required":["schema"],"properties":{"name":{"type":"string"},)"
    R"("strict":{"anyOf":[{"type":"boolean"},{"type":"null"}]},"schema":{}}}}})";
constexpr std::string_view kOutputs =
    R"({"type":"object","properties":{"json":{},"regex":{"type":"string"},)"
    R"("choice":{"type":"array","minItems":1,"items":{"type":"string"}},"json_object":{"type":"boolean"}}})";
constexpr std::string_view kChoices = R"({"type":"array","minItems":1,"items":{"type":"string"}})";

// What is said of refused fields.
constexpr std::string_view kNot = "is not offered", kHere = "is not offered here";
constexpr std::string_view kStructured =
    ": of structured output, JSON schemas, regular expressions and choices are offered";
constexpr std::string_view kUseTools = "is not offered; use tools";
constexpr std::string_view kOneAnswer = ": this endpoint gives one answer";
constexpr std::string_view kUseMaxTokens = "is not offered here; use max_tokens";
constexpr std::string_view kUseOutputTokens = "is not offered here; use max_output_tokens";
constexpr std::string_view kUseStop = "is not offered here; use stop";
constexpr std::string_view kUseFormat = "is not offered here; use response_format";
constexpr std::string_view kUseMessage = "is not offered here; use a message with the role system";
constexpr std::string_view kUsePrompt = "is not offered; use prompt_name";
constexpr std::string_view kNotCut = ": texts are not cut; those that are too long are refused";
constexpr std::string_view kByFolder = ": the folder says so";

constexpr BodyField kFields[] = {
    text("model", kAll),
    // The input.
    demanded(list("messages", kChat, kMostMessages, kChatMessages)),
    list("messages", kTokenize, kMostMessages, kChatMessages),
    demanded(list("messages", kAnthropic, kMostMessages,
                  R"({"type":"array","items":{"type":"object"}})")),
    demanded(list("input", kResponses, kMostMessages, "{}")),
    demanded(lists("prompt", kCompletion, FieldKind::kPrompts, kMostPrompts, kPrompt)),
    text("prompt", kTokenize),
    text("content", kTokenize),
    flag("return_token_strs", kTokenize),
    demanded(
        lists("tokens", kDetokenize, FieldKind::kIds, SIZE_MAX,
              R"({"type":"array","items":{"type":"integer","minimum":0,"maximum":2147483647}})")),
    flag("add_special_tokens", kAll),
    text("reasoning_effort", kMessages),
    list("chat_template_kwargs", kMessages, 256, kObject),
    flag("add_generation_prompt", kMessages),
    flag("continue_final_message", kMessages),
// Sampling.
#define MOEBIUS_SAMPLING_NUMBER(type, name, none, least, greatest) \
  sampling<type>(#name, least, greatest),
#include "base/sampling_numbers.inc"
    {.name = "seed",
     .endpoints = kGenerating,
     .kind = FieldKind::kInteger,
     .least_integer = INT64_MIN,
     .greatest_integer = INT64_MAX,
     .schema = kSeed},
    integer("n", kBoth, 1, kMostChoices),
    integer("best_of", kBoth, 0, INT32_MAX),
    list("logit_bias", kGenerating, kMostBiases, kBias),
    list("stop", kGenerating, kMostStops, kStops),
    lists("stop_token_ids", kGenerating, FieldKind::kIds, kMostStopTokens, kIdList),
    lists("allowed_token_ids", kGenerating, FieldKind::kIds, kMostAllowed, kAllowed),
    list("bad_words", kGenerating, kMostBadWords, kWords),
    flag("include_stop_str_in_output", kGenerating),
    flag("skip_special_tokens", kGenerating),
    flag("ignore_eos", kGenerating),
    integer("min_tokens", kGenerating, 0, kMostTokens),
    integer("max_tokens", kChat | kAnthropic, 1, kMostTokens),
    integer("max_tokens", kCompletion, 0, kMostTokens),
    integer("max_completion_tokens", kChat, 1, kMostTokens),
    flag("logprobs", kChat),
    integer("logprobs", kCompletion, 0, kMostLogprobs),
    integer("top_logprobs", kChat | kResponses, 0, kMostLogprobs),
    integer("prompt_logprobs", kBoth, 0, kMostLogprobs),
    flag("echo", kBoth),
    text("suffix", kCompletion, R"({"type":"string","maxLength":0})"),
    flag("stream", kGenerating),
    list("stream_options", kBoth, 64, kStreamOptions),
    integer("priority", kBoth, INT32_MIN, INT32_MAX),
    list("prediction", kBoth, 64, kObject),
    list("speculate", kBoth, 4, kSpeculate),
    text("cache_salt", kGenerating, kName),
    flag("return_token_ids", kBoth),
    list("tools", kChat | kAnthropic | kResponses | kTokenize, kMostTools, kArray),
    outline("tools", kCompletion),
    list("tool_choice", kMessages | kAnthropic | kResponses, 64, "{}"),
    flag("parallel_tool_calls", kChat | kResponses),
    flag("include_reasoning", kChat),
    integer("thinking_token_budget", kChat, 0, kMostTokens),
    // Vectors and scores.
    demanded(lists("input", kEmbeddings, FieldKind::kPrompts, kMostTexts, kTexts)),
    text("encoding_format", kEmbeddings, R"({"enum":["float","base64"]})"),
    integer("dimensions", kEmbeddings, 1, INT32_MAX),
    text("prompt_name", kPooled),
    demanded(text("query", kRerank)),
    demanded(list("documents", kRerank, kMostTexts, kDocuments)),
    integer("top_n", kRerank, 1, INT32_MAX),
    flag("return_documents", kRerank),
    // Anthropic's endpoint.
    any("system", kAnthropic),
    list("stop_sequences", kAnthropic, kMostStops, kArray),
    list("thinking", kAnthropic, 16, kObject),
    list("output_config", kAnthropic, 16, kObject),
    list("output_format", kAnthropic, 16, kObject),
    // /v1/responses.
    list("include", kResponses, 64, kArray),
    text("instructions", kResponses),
    integer("max_output_tokens", kResponses, 1, kMostTokens),
    list("reasoning", kResponses, 16, kObject),
    list("text", kResponses, 16, kObject),
    list("metadata", kResponses, 64, kObject),
    any("user", kResponses),
    text("prompt_cache_key", kResponses, kName),
    text("truncation", kResponses, R"({"enum":["disabled"]})"),
    flag("store", kResponses),
    flag("background", kResponses),
    any("previous_response_id", kResponses),
    outline("conversation", kResponses),
    outline("prompt", kResponses),
    // The form of the answer.
    list("response_format", kGenerating, 64, kFormat),
    list("structured_outputs", kGenerating, 64, kOutputs),
    any("guided_json", kGenerating),
    text("guided_regex", kGenerating),
    any("guided_choice", kGenerating, kChoices),
    any("json_schema", kGenerating),
    refused("modalities", kBoth, ": only [\"text\"] is offered", Off::kText),
    // Refused: structured output, by all its names.
    refused("guided_grammar", kGenerating, kStructured),
    refused("guided_decoding_backend guided_whitespace_pattern grammar structural_tag regex "
            "ebnf",
            kGenerating, kStructured, Off::kEmpty),
    // Refused: tools.
    refused("functions mcp_servers", kGenerating, kUseTools, Off::kEmpty),
    refused("function_call", kGenerating, kUseTools, Off::kNone),
    // Refused: the input.
    refused("chat_template", kGenerating, ": templates come with the model only"),
    refused("documents images image_data container prompt_embeds lora lora_path "
            "kv_transfer_params vllm_xargs custom_logit_processor samplers negative_prompt "
            "stop_regex logprob_token_ids response_fields",
            kGenerating, kNot, Off::kEmpty),
    refused("audio web_search_options truncate_prompt_tokens repetition_detection", kGenerating,
            kNot),
    // Refused: sampling.
    refused("logits_processors", kGenerating, "are not offered"),
    refused("use_beam_search", kGenerating, ": beam search is not offered", Off::kFalse),
    refused("length_penalty", kGenerating, kNot, Off::kNumber, 1, "use_beam_search"),
    refused("early_stopping", kGenerating, kNot, Off::kFalse, 0, "use_beam_search"),
    refused("mirostat dry_multiplier xtc_probability top_a dynatemp_range smoothing_factor",
            kGenerating, kNot, Off::kNumber),
    refused("mirostat_tau mirostat_eta", kGenerating, kNot, Off::kNever, 0, "mirostat"),
    refused("dry_base dry_allowed_length", kGenerating, kNot, Off::kNever, 0, "dry_multiplier"),
    refused("dry_penalty_last_n", kGenerating, kNot, Off::kNumber, 0, "dry_multiplier"),
    refused("dry_sequence_breakers", kGenerating, kNot, Off::kEmpty, 0, "dry_multiplier"),
    refused("xtc_threshold", kGenerating, kNot, Off::kNever, 0, "xtc_probability"),
    refused("typical_p tfs_z guidance_scale", kGenerating, kNot, Off::kNumber, 1),
    refused("dynatemp_exponent", kGenerating, kNot, Off::kNumber, 1, "dynatemp_range"),
    refused("adaptive_target", kGenerating, kNot, Off::kAtMost, -1e-9),
    refused("repeat_penalty", kGenerating, "is not offered; use repetition_penalty", Off::kNumber,
            1),
    refused("repeat_last_n", kGenerating, kNot, Off::kNumber, 0, "repeat_penalty"),
    refused("min_keep n_indent t_max_predict_ms", kGenerating, kNot, Off::kAtMost),
    refused("watermarking post_sampling_probs", kGenerating, kNot, Off::kFalse),
    // Refused: the answer's length and content.
    refused("n_predict", kGenerating, "is not offered; use max_tokens", Off::kAtMost, -1),
    refused("max_new_tokens", kGenerating, "is not offered; use max_tokens"),
    refused("min_new_tokens", kGenerating, "is not offered; use min_tokens", Off::kAtMost),
    refused("no_stop_trim", kGenerating, "is not offered; use include_stop_str_in_output",
            Off::kFalse),
    refused("n_probs", kGenerating, "is not offered; use logprobs", Off::kAtMost),
    refused("return_tokens_as_token_ids", kGenerating, "is not offered; use return_token_ids",
            Off::kFalse),
    // Refused: what other endpoints take.
    refused("max_tokens max_completion_tokens", kResponses, kUseOutputTokens),
    refused("max_completion_tokens", kCompletion | kAnthropic, kUseMaxTokens),
    refused("max_output_tokens", kBoth | kAnthropic, kUseMaxTokens),
    refused("stop_sequences", kBoth | kResponses, kUseStop, Off::kEmpty),
    refused("output_config", kBoth | kResponses, kUseFormat, Off::kEmpty),
    refused("system instructions", kBoth, kUseMessage, Off::kEmpty),
    refused("system", kResponses, "is not offered here; use instructions", Off::kEmpty),
    refused("instructions", kAnthropic, "is not offered here; use system", Off::kEmpty),
    refused("suffix", kChat | kAnthropic | kResponses, kHere, Off::kEmpty),
    refused("n", kAnthropic | kResponses, kOneAnswer, Off::kNumber, 1),
    refused("best_of", kAnthropic | kResponses, kOneAnswer, Off::kAtMost, 1),
    refused("logprobs", kAnthropic, kHere, Off::kFalse),
    refused("logprobs", kResponses, "is not offered here; use top_logprobs", Off::kFalse),
    refused("top_logprobs", kCompletion | kAnthropic, kHere, Off::kNumber),
    refused("prompt_logprobs", kAnthropic | kResponses, kHere),
    refused("echo return_token_ids continue_final_message", kAnthropic | kResponses, kHere,
            Off::kFalse),
    refused("thinking_token_budget", kCompletion | kAnthropic | kResponses, kHere),
    refused("chat_template_kwargs", kAnthropic | kResponses, kHere, Off::kEmpty),
    refused("add_generation_prompt", kAnthropic | kResponses, kHere, Off::kTrue),
    // Refused: vectors and scores.
    refused("truncate_prompt_tokens max_tokens_per_doc max_chunks_per_doc", kPooled, kNotCut),
    refused("truncate truncation", kPooled, kNotCut, Off::kNone),
    refused("normalize use_activation activation", kPooled, kByFolder),
    refused("raw_scores", kPooled, kByFolder, Off::kFalse),
    refused("embed_dtype", kPooled, "is not offered; numbers are float32", Off::kFloat32),
    refused("embedding_type", kPooled, "is not offered; use encoding_format", Off::kFloat32),
    refused("embedding_types", kPooled, "are not offered; use encoding_format", Off::kEmpty),
    refused("late_chunking", kPooled, "is not offered", Off::kFalse),
    refused("task input_type instruction", kPooled, kUsePrompt, Off::kEmpty),
    refused("rank_fields", kPooled, "are not offered", Off::kEmpty),
};

// Returns whether `is` holds for a name of the row.
template <class F>
constexpr bool any_name(const BodyField& field, F&& is) {
  for (std::string_view rest = field.name; !rest.empty();) {
    const size_t end = std::min(rest.find(' '), rest.size());
    if (is(rest.substr(0, end))) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

// Returns whether every field has at most one row at an endpoint.
constexpr bool rows_differ() {
  for (const BodyField& a : kFields)
    for (const BodyField* b = &a + 1; b != std::end(kFields); ++b)
      if ((a.endpoints & b->endpoints) != 0 && any_name(a, [&](std::string_view name) {
            return any_name(*b, [&](std::string_view other) { return name == other; });
          }))
        return false;
  return true;
}
static_assert(rows_differ());

constexpr auto bit(Endpoint endpoint) { return static_cast<unsigned>(endpoint); }

bool is_off(const BodyField& field, const Json& v) {
  switch (field.off) {
    case Off::kNever:
      return false;
    case Off::kEmpty:
      return (v.is_string() && v.as_string().empty()) || (v.is_bool() && !v.as_bool()) ||
             (v.is_array() && v.items().empty()) || (v.is_object() && v.members().empty());
    case Off::kFalse:
      return v.is_bool() && !v.as_bool();
    case Off::kTrue:
      return v.is_bool() && v.as_bool();
    case Off::kNumber:
      return v.is_number() && v.as_double() == field.number;
    case Off::kAtMost:
      return v.is_number() && v.as_double() <= field.number;
    case Off::kNone:
      return (v.is_string() && (v.as_string() == "none" || v.as_string() == "NONE")) ||
             (v.is_bool() && !v.as_bool());
    case Off::kFloat32:
      return v.is_string() && (v.as_string() == "float" || v.as_string() == "float32");
    case Off::kText:
      return v.is_array() && v.items().size() == 1 && v.items()[0].is_string() &&
             v.items()[0].as_string() == "text";
  }
  return false;
}

// Returns a field's schema without null.
std::string value_schema(const BodyField& f) {
  if (!f.schema.empty()) return std::string(f.schema);
  if (f.kind == FieldKind::kBoolean) return R"({"type":"boolean"})";
  if (f.kind == FieldKind::kNumber)
    return fmt::format(R"({{"type":"number","minimum":{},"maximum":{}}})", f.least, f.greatest);
  if (f.kind == FieldKind::kInteger)
    return fmt::format(R"({{"type":"integer","minimum":{},"maximum":{}}})", f.least_integer,
                       f.greatest_integer);
  return R"({"type":"string"})";
}

}  // namespace

std::span<const BodyField> body_fields() { return kFields; }

const BodyField* find_field(std::string_view name, Endpoint endpoint) {
  const auto at = std::find_if(std::begin(kFields), std::end(kFields), [&](const BodyField& f) {
    return (f.endpoints & bit(endpoint)) != 0 &&
           any_name(f, [&](std::string_view own) { return own == name; });
  });
  return at == std::end(kFields) ? nullptr : at;
}

void refuse_fields(const Fields& f, Endpoint endpoint) {
  const auto asks = [&](const BodyField& field, std::string_view name) {
    const Json* v = f.find(name);
    return v != nullptr && !is_off(field, *v);
  };
  for (const BodyField& field : kFields) {
    if (field.words.empty() || (field.endpoints & bit(endpoint)) == 0) continue;
    any_name(field, [&](std::string_view name) {
      if (!asks(field, name)) return false;
      if (f.find(field.of) != nullptr && !asks(*find_field(field.of, endpoint), field.of))
        return false;
      refuse("unsupported", std::string(name), "{}{}{}", name, field.words[0] == ':' ? "" : " ",
             field.words);
    });
  }
}

std::string_view name_of(Endpoint endpoint) {
  return kNames[static_cast<size_t>(std::countr_zero(bit(endpoint)))];
}

std::string body_schema(Endpoint endpoint) {
  std::string needed, properties;
  const auto add = [](std::string& to, const std::string& more) {
    to += (to.empty() ? "" : ",") + more;
  };
  for (const BodyField& f : kFields) {
    if ((f.endpoints & bit(endpoint)) == 0 || f.kind == FieldKind::kOutline) continue;
    if (f.needed) add(needed, fmt::format("\"{}\"", f.name));
    std::string value = value_schema(f);
    if (!f.needed && value != "{}")
      value = fmt::format(R"({{"anyOf":[{},{{"type":"null"}}]}})", value);
    add(properties, fmt::format(R"("{}":{})", f.name, value));
  }
  return fmt::format(R"({{"type":"object","required":[{}],"properties":{{{}}}}})", needed,
                     properties);
}

std::string with_body_schemas(std::string document) {
  for (unsigned i = 0; i < kEndpoints; ++i) {
    const auto endpoint = static_cast<Endpoint>(1u << i);
    const std::string mark = fmt::format("\"@{}\"", name_of(endpoint));
    for (size_t at; (at = document.find(mark)) != std::string::npos;)
      document.replace(at, mark.size(), body_schema(endpoint));
  }
  return document;
}

std::optional<double> BodyFields::number(std::string_view name) const {
  const BodyField* f = find_field(name, body_.endpoint);
  if (f == nullptr || f->kind != FieldKind::kNumber) return std::nullopt;
  return Fields::number(name, f->least, f->greatest);
}

std::optional<int64_t> BodyFields::integer(std::string_view name, int64_t least,
                                           int64_t most) const {
  const BodyField* f = find_field(name, body_.endpoint);
  if (f == nullptr || f->kind != FieldKind::kInteger) return std::nullopt;
  return Fields::integer(name, std::max(least, f->least_integer),
                         std::min(most, f->greatest_integer));
}

}  // namespace moebius
