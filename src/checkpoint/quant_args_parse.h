// SPDX-License-Identifier: Apache-2.0
// One QuantizationArgs object of a config (weights, input_activations, output_activations,
// kv_cache_scheme) as QuantArgs, and the presets that may stand for a whole group.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "checkpoint/quant_fields.h"
#include "quant/scheme.h"

namespace moebius {

enum class ArgsRole : uint8_t { kWeights, kInput, kOutput, kKvCache };

// Throws Error naming field and value for what the format does not allow. Deprecated spellings are
// understood.
QuantArgs parse_quant_args(const Json& value, const std::string& path, ArgsRole role,
                           QuantFieldsContext& context);

// The scheme a preset name ("FP8_DYNAMIC", any case) stands for, in the meaning of the library
// version that wrote the file.
std::optional<Scheme> scheme_of_preset(std::string_view name, std::string_view version);

// {0, 18} for "0.18.0.a20260801"; nothing if the text does not start with two numbers.
std::optional<std::pair<int, int>> parse_version(std::string_view version);

}  // namespace moebius
