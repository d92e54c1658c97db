// SPDX-License-Identifier: Apache-2.0
// Reads defaults for generation from generation_config.json, config.json and tokenizer_config.json
// of a folder. Absent values stay absent, so that callers can tell "not given" from a value.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moebius {

struct GenerationDefaults {
  bool do_sample = false;  // true: tokens are drawn; false: greedy
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<int64_t> top_k, max_length, max_new_tokens;
  std::optional<int32_t> bos, pad;
  std::vector<int32_t> eos;  // end tokens of all three files, ascending, each once
  std::vector<std::string> stop_strings;

  // Return the values to use if the user gives none; temperature 0 means greedy.
  double effective_temperature() const { return do_sample ? temperature.value_or(1.0) : 0.0; }
  int64_t effective_top_k() const { return do_sample ? top_k.value_or(50) : 0; }
  double effective_top_p() const { return do_sample ? top_p.value_or(1.0) : 1.0; }
};

// Parses the three objects, any of which may be null. `token_id` returns the id of a token written
// as text (eos_token), or nothing. `vocab`: token ids must be below it (0: not checked). Throws
// Error that names file and field.
GenerationDefaults parse_generation_defaults(
    const Json* generation_config, const Json* config, const Json* tokenizer_config,
    const std::function<std::optional<int32_t>(std::string_view)>& token_id, uint64_t vocab);

// Reads the files of a folder; missing files are no error.
GenerationDefaults read_generation_defaults(
    const std::string& folder,
    const std::function<std::optional<int32_t>(std::string_view)>& token_id, uint64_t vocab);

}  // namespace moebius
