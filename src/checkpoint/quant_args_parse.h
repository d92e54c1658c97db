// SPDX-License-Identifier: Apache-2.0
// Parses one QuantizationArgs object of a config (weights, input_activations, output_activations,
// kv_cache_scheme), and the preset names that may replace a whole group.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "checkpoint/quant_fields.h"
#include "quant/scheme.h"

namespace moebius {

enum class ArgsRole : uint8_t { kWeights, kInput, kOutput, kKvCache };

// Returns the parsed object; accepts deprecated spellings. Throws Error that names the field and
// the value which the format does not allow.
QuantArgs parse_quant_args(const Json& value, const std::string& path, ArgsRole role,
                           QuantFieldsContext& context);

// Returns the scheme of a preset name ("FP8_DYNAMIC", any case), as the library version that wrote
// the file defines it.
std::optional<Scheme> scheme_of_preset(std::string_view name, std::string_view version);

// Returns {0, 18} for "0.18.0.a20260801"; nothing if the text does not start with two numbers.
std::optional<std::pair<int, int>> parse_version(std::string_view version);

}  // namespace moebius
