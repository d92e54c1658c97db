// SPDX-License-Identifier: Apache-2.0
#include "serve/refused_fields.h"

#include <fmt/core.h>

#include <algorithm>

#include "serve/api_error.h"

namespace moebius {
namespace {

enum class Off : uint8_t {
  kNever,  // every value asks for something
  kEmpty,  // "", [], {}, false
  kFalse,
  kNumber,  // this one
  kAtMost,  // this one and those below
  kNone,    // the word "none"
};

struct RefusedField {
  std::string_view name;
  Off off = Off::kNever;
  double number = 0;         // of kNumber and kAtMost
  std::string_view of = {};  // what it belongs to: where that is said to be off, so is this
  std::string_view words = "is not offered";
};

constexpr std::string_view kStructured =
    ": of structured output, JSON schemas, regular expressions and choices are offered";
constexpr std::string_view kUseTools = "is not offered; use tools";

constexpr RefusedField kRefused[] = {
    // Structured output, by its several names.
    {"guided_grammar", Off::kNever, 0, {}, kStructured},
    {"guided_decoding_backend", Off::kEmpty, 0, {}, kStructured},
    {"guided_whitespace_pattern", Off::kEmpty, 0, {}, kStructured},
    {"grammar", Off::kEmpty, 0, {}, kStructured},
    {"structural_tag", Off::kEmpty, 0, {}, kStructured},
    {"regex", Off::kEmpty, 0, {}, kStructured},
    {"ebnf", Off::kEmpty, 0, {}, kStructured},
    // Tools.
    {"functions", Off::kEmpty, 0, {}, kUseTools},
    {"function_call", Off::kNone, 0, {}, kUseTools},
    // What goes in.
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
    // How tokens are chosen.
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
    // Where it ends, and what comes out.
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
};

const RefusedField* find_refused(std::string_view name) {
  const auto* at = std::find_if(std::begin(kRefused), std::end(kRefused),
                                [&](const RefusedField& f) { return f.name == name; });
  return at != std::end(kRefused) ? at : nullptr;
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
    case Off::kNumber:
      return v.is_number() && v.as_double() == field.number;
    case Off::kAtMost:
      return v.is_number() && v.as_double() <= field.number;
    case Off::kNone:
      return v.is_string() && v.as_string() == "none";
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

bool is_refused_field(std::string_view name) { return find_refused(name) != nullptr; }

void refuse_fields(const Fields& f) {
  refuse_kinds(f);
  for (const RefusedField& field : kRefused) {
    const Json* v = f.find(field.name);
    if (v == nullptr || is_off(field, *v)) continue;
    const Json* of = field.of.empty() ? nullptr : f.find(field.of);
    if (of != nullptr && is_off(*find_refused(field.of), *of)) continue;
    throw ApiError(400, "unsupported",
                   fmt::format("{}{}{}", field.name, field.words[0] == ':' ? "" : " ", field.words),
                   std::string(field.name));
  }
}

}  // namespace moebius
