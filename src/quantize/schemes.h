// SPDX-License-Identifier: Apache-2.0
// The schemes that can be made: one list for the command, its help, the documents and the tests. And
// the quantization_config that says so in the words of compressed-tensors.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/quant_config.h"
#include "quantize/options.h"

namespace moebius {

inline constexpr std::string_view kSectionVersion = "0.19.0";  // of compressed-tensors, as written

struct SchemeName {
  std::string_view name, what;
};
std::span<const SchemeName> scheme_names();

// Programs that load folders, for --for.
std::span<const std::string_view> readers();
// Nothing if `reader` loads the scheme, else why not.
std::string reader_refusal(std::string_view reader, const Scheme& scheme);

// The preset with its changes; its format is ours to choose where the options give none. Throws
// Error.
Scheme scheme_of(const QuantizeOptions& options);
// The format that compressed-tensors gives weights, and 4-bit weights with int8 rows packed.
Format usual_format(const Scheme& scheme);

// Input scales are stored: they come from activations.
bool has_stored_input_scale(const Scheme& scheme);

// The groups that the options ask for: from --scheme and --targets, or from a file. Throws Error.
std::vector<ConfigGroup> groups_of(const QuantizeOptions& options,
                                   std::vector<std::string>& warnings);
// Without a method: rounding; with calibration text GPTQ for integers of at most 4 bits, else searched
// scales.
QuantizeMethod usual_method(const QuantizeOptions& options);
// The section of config.json, every field spelt out.
Json section_of(const std::vector<ConfigGroup>& groups, const std::vector<std::string>& ignore);

}  // namespace moebius
