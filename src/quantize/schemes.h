// SPDX-License-Identifier: Apache-2.0
// Lists the schemes that `quantize` can make, for the command, its help, the documents and the
// tests; and writes the quantization_config that describes a result in compressed-tensors' terms.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/quant_config.h"
#include "quantize/options.h"

namespace moebius {

// Version of compressed-tensors that written folders name.
inline constexpr std::string_view kSectionVersion = "0.19.0";

struct SchemeName {
  std::string_view name, what;
};
std::span<const SchemeName> scheme_names();

// Returns the programs that can be named with --for.
std::span<const std::string_view> readers();
// Returns why `reader` cannot load the scheme, or "".
std::string reader_refusal(std::string_view reader, const Scheme& scheme);

// Returns the scheme of the preset that the options name, with the options' changes, in the usual
// format unless they give one. Throws Error for an impossible one.
Scheme scheme_of(const QuantizeOptions& options);
// Returns the format that compressed-tensors uses for the scheme; 4-bit weights with int8 rows are
// packed.
Format usual_format(const Scheme& scheme);

// Returns true if the scheme stores input scales, which need calibration.
bool has_stored_input_scale(const Scheme& scheme);

// Returns the groups of the options: from --scheme and --targets, or from a file. Throws Error.
std::vector<ConfigGroup> groups_of(const QuantizeOptions& options,
                                   std::vector<std::string>& warnings);
// Returns the method to use if the options name none: rounding; with calibration text, GPTQ for
// integers of at most 4 bits, otherwise searched scales.
QuantizeMethod usual_method(const QuantizeOptions& options);
// Returns the quantization_config for config.json with all fields written out.
Json section_of(const std::vector<ConfigGroup>& groups, const std::vector<std::string>& ignore);

}  // namespace moebius
