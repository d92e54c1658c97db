// SPDX-License-Identifier: Apache-2.0
#include "serve/refused_fields.h"

#include <fmt/core.h>

#include "serve/api_error.h"
#include "serve/endpoint_sets.h"

namespace moebius {
namespace {

using namespace endpoint_sets;

enum class Off : uint8_t {
  kNever,  // every value asks for a feature
  kEmpty,  // "", [], {} and false ask for nothing
  kFalse,
  kTrue,
  kNumber,   // this number asks for nothing
  kAtMost,   // numbers up to this one ask for nothing
  kNone,     // the words "none" and "NONE", and false, ask for nothing
  kFloat32,  // the words "float" and "float32" ask for nothing
};

struct RefusedField {
  std::string_view name;
  Off off = Off::kNever;
  double number = 0;  // number for kNumber and kAtMost
  // Field to which it belongs: if that one asks for nothing, so does this.
  std::string_view of = {};
  std::string_view words = "is not offered";
  unsigned endpoints = kGenerating;
};

constexpr std::string_view kStructured =
    ": of structured output, JSON schemas, regular expressions and choices are offered";
constexpr std::string_view kUseTools = "is not offered; use tools";
constexpr std::string_view kHere = "is not offered here";
constexpr std::string_view kOneAnswer = ": this endpoint gives one answer";
constexpr std::string_view kUseMaxTokens = "is not offered here; use max_tokens";
constexpr std::string_view kUseOutputTokens = "is not offered here; use max_output_tokens";
constexpr std::string_view kUseStop = "is not offered here; use stop";
constexpr std::string_view kUseFormat = "is not offered here; use response_format";
constexpr std::string_view kUseMessage = "is not offered here; use a message with the role system";
constexpr std::string_view kUsePrompt = "is not offered; use prompt_name";
constexpr std::string_view kNotCut = ": texts are not cut; those that are too long are refused";
constexpr std::string_view kByFolder = ": the folder says so";

constexpr RefusedField kRefused[] = {
    // Fields of structured output, by all their names.
    {"guided_grammar", Off::kNever, 0, {}, kStructured},
    {"guided_decoding_backend", Off::kEmpty, 0, {}, kStructured},
    {"guided_whitespace_pattern", Off::kEmpty, 0, {}, kStructured},
    {"grammar", Off::kEmpty, 0, {}, kStructured},
    {"structural_tag", Off::kEmpty, 0, {}, kStructured},
    {"regex", Off::kEmpty, 0, {}, kStructured},
    {"ebnf", Off::kEmpty, 0, {}, kStructured},
    // Fields of tools.
    {"functions", Off::kEmpty, 0, {}, kUseTools},
    {"function_call", Off::kNone, 0, {}, kUseTools},
    // Fields of the input.
    {"chat_template", Off::kNever, 0, {}, ": templates come with the model only"},
    {"documents", Off::kEmpty},
    {"images", Off::kEmpty},
    {"image_data", Off::kEmpty},
    {"audio"},
    {"web_search_options"},
    {"mcp_servers", Off::kEmpty, 0, {}, kUseTools},
    {"container", Off::kEmpty},
    {"prompt_embeds", Off::kEmpty},
    {"truncate_prompt_tokens"},
    {"lora", Off::kEmpty},
    {"lora_path", Off::kEmpty},
    {"kv_transfer_params", Off::kEmpty},
    {"vllm_xargs", Off::kEmpty},
    // Fields of sampling.
    {"logits_processors", Off::kNever, 0, {}, "are not offered"},
    {"custom_logit_processor", Off::kEmpty},
    {"use_beam_search", Off::kFalse, 0, {}, ": beam search is not offered"},
    {"length_penalty", Off::kNumber, 1, "use_beam_search"},
    {"early_stopping", Off::kFalse, 0, "use_beam_search"},
    {"mirostat", Off::kNumber, 0},
    {"mirostat_tau", Off::kNever, 0, "mirostat"},
    {"mirostat_eta", Off::kNever, 0, "mirostat"},
    {"dry_multiplier", Off::kNumber, 0},
    {"dry_base", Off::kNever, 0, "dry_multiplier"},
    {"dry_allowed_length", Off::kNever, 0, "dry_multiplier"},
    {"dry_penalty_last_n", Off::kNumber, 0, "dry_multiplier"},
    {"dry_sequence_breakers", Off::kEmpty, 0, "dry_multiplier"},
    {"xtc_probability", Off::kNumber, 0},
    {"xtc_threshold", Off::kNever, 0, "xtc_probability"},
    {"typical_p", Off::kNumber, 1},
    {"tfs_z", Off::kNumber, 1},
    {"top_a", Off::kNumber, 0},
    {"top_n_sigma", Off::kAtMost, 0},
    {"dynatemp_range", Off::kNumber, 0},
    {"dynatemp_exponent", Off::kNumber, 1, "dynatemp_range"},
    {"smoothing_factor", Off::kNumber, 0},
    {"adaptive_target", Off::kAtMost, -1e-9},
    {"repeat_penalty", Off::kNumber, 1, {}, "is not offered; use repetition_penalty"},
    {"repeat_last_n", Off::kNumber, 0, "repeat_penalty"},
    {"samplers", Off::kEmpty},
    {"min_keep", Off::kAtMost, 0},
    {"watermarking", Off::kFalse},
    {"guidance_scale", Off::kNumber, 1},
    {"negative_prompt", Off::kEmpty},
    // Fields of the answer's length and content.
    {"n_predict", Off::kAtMost, -1, {}, "is not offered; use max_tokens"},
    {"max_new_tokens", Off::kNever, 0, {}, "is not offered; use max_tokens"},
    {"min_new_tokens", Off::kAtMost, 0, {}, "is not offered; use min_tokens"},
    {"n_indent", Off::kAtMost, 0},
    {"t_max_predict_ms", Off::kAtMost, 0},
    {"repetition_detection"},
    {"stop_regex", Off::kEmpty},
    {"no_stop_trim", Off::kFalse, 0, {}, "is not offered; use include_stop_str_in_output"},
    {"n_probs", Off::kAtMost, 0, {}, "is not offered; use logprobs"},
    {"post_sampling_probs", Off::kFalse},
    {"logprob_token_ids", Off::kEmpty},
    {"return_tokens_as_token_ids", Off::kFalse, 0, {}, "is not offered; use return_token_ids"},
    {"response_fields", Off::kEmpty},
    // Fields of the same name at other endpoints.
    {"max_tokens", Off::kNever, 0, {}, kUseOutputTokens, kResponses},
    {"max_completion_tokens", Off::kNever, 0, {}, kUseMaxTokens, kCompletion | kAnthropic},
    {"max_completion_tokens", Off::kNever, 0, {}, kUseOutputTokens, kResponses},
    {"max_output_tokens", Off::kNever, 0, {}, kUseMaxTokens, kBoth | kAnthropic},
    {"stop_sequences", Off::kEmpty, 0, {}, kUseStop, kBoth | kResponses},
    {"output_config", Off::kEmpty, 0, {}, kUseFormat, kBoth | kResponses},
    {"system", Off::kEmpty, 0, {}, kUseMessage, kBoth},
    {"system", Off::kEmpty, 0, {}, "is not offered here; use instructions", kResponses},
    {"instructions", Off::kEmpty, 0, {}, kUseMessage, kBoth},
    {"instructions", Off::kEmpty, 0, {}, "is not offered here; use system", kAnthropic},
    {"suffix", Off::kEmpty, 0, {}, kHere, kChat | kAnthropic | kResponses},
    {"n", Off::kNumber, 1, {}, kOneAnswer, kAnthropic | kResponses},
    {"best_of", Off::kAtMost, 1, {}, kOneAnswer, kAnthropic | kResponses},
    {"logprobs", Off::kFalse, 0, {}, kHere, kAnthropic},
    {"logprobs", Off::kFalse, 0, {}, "is not offered here; use top_logprobs", kResponses},
    {"top_logprobs", Off::kNumber, 0, {}, kHere, kCompletion | kAnthropic},
    {"prompt_logprobs", Off::kNever, 0, {}, kHere, kAnthropic | kResponses},
    {"echo", Off::kFalse, 0, {}, kHere, kAnthropic | kResponses},
    {"return_token_ids", Off::kFalse, 0, {}, kHere, kAnthropic | kResponses},
    {"thinking_token_budget", Off::kNever, 0, {}, kHere, kCompletion | kAnthropic | kResponses},
    {"chat_template_kwargs", Off::kEmpty, 0, {}, kHere, kAnthropic | kResponses},
    {"continue_final_message", Off::kFalse, 0, {}, kHere, kAnthropic | kResponses},
    {"add_generation_prompt", Off::kTrue, 0, {}, kHere, kAnthropic | kResponses},
    // Fields of vectors and scores.
    {"truncate_prompt_tokens", Off::kNever, 0, {}, kNotCut, kPooled},
    {"truncate", Off::kNone, 0, {}, kNotCut, kPooled},
    {"truncation", Off::kNone, 0, {}, kNotCut, kPooled},
    {"max_tokens_per_doc", Off::kNever, 0, {}, kNotCut, kPooled},
    {"max_chunks_per_doc", Off::kNever, 0, {}, kNotCut, kPooled},
    {"normalize", Off::kNever, 0, {}, kByFolder, kPooled},
    {"use_activation", Off::kNever, 0, {}, kByFolder, kPooled},
    {"activation", Off::kNever, 0, {}, kByFolder, kPooled},
    {"raw_scores", Off::kFalse, 0, {}, kByFolder, kPooled},
    {"embed_dtype", Off::kFloat32, 0, {}, "is not offered; numbers are float32", kPooled},
    {"embedding_type", Off::kFloat32, 0, {}, "is not offered; use encoding_format", kPooled},
    {"embedding_types", Off::kEmpty, 0, {}, "are not offered; use encoding_format", kPooled},
    {"late_chunking", Off::kFalse, 0, {}, "is not offered", kPooled},
    {"task", Off::kEmpty, 0, {}, kUsePrompt, kPooled},
    {"input_type", Off::kEmpty, 0, {}, kUsePrompt, kPooled},
    {"instruction", Off::kEmpty, 0, {}, kUsePrompt, kPooled},
    {"rank_fields", Off::kEmpty, 0, {}, "are not offered", kPooled},
};

const RefusedField* find_refused(std::string_view name, Endpoint endpoint) {
  for (const RefusedField& f : kRefused)
    if (f.name == name && (f.endpoints & static_cast<unsigned>(endpoint)) != 0) return &f;
  return nullptr;
}

bool is_off(const RefusedField& field, const Json& v) {
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
  }
  return false;
}

void refuse_kinds(const Fields& f) {
  if (const Json* kinds = f.find("modalities"))
    if (!kinds->is_array() || kinds->items().size() != 1 || !kinds->items()[0].is_string() ||
        kinds->items()[0].as_string() != "text")
      throw ApiError(400, "unsupported", "modalities: only [\"text\"] is offered", "modalities");
}

}  // namespace

bool is_refused_field(std::string_view name, Endpoint endpoint) {
  return find_refused(name, endpoint) != nullptr;
}

void refuse_fields(const Fields& f, Endpoint endpoint) {
  refuse_kinds(f);
  for (const RefusedField& field : kRefused) {
    const Json* v = f.find(field.name);
    if (v == nullptr || find_refused(field.name, endpoint) != &field || is_off(field, *v)) continue;
    const Json* of = field.of.empty() ? nullptr : f.find(field.of);
    if (of != nullptr && is_off(*find_refused(field.of, endpoint), *of)) continue;
    throw ApiError(400, "unsupported",
                   fmt::format("{}{}{}", field.name, field.words[0] == ':' ? "" : " ", field.words),
                   std::string(field.name));
  }
}

}  // namespace moebius
