// SPDX-License-Identifier: Apache-2.0
// The quantization section of a config.json as values, before any module is matched against it.
#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/quant_config.h"

namespace moebius {

struct QuantSection {
  std::string method;  // "compressed-tensors", "mxfp4", "" when there is no section
  std::string version;
  std::string
      path;  // of the section inside config.json: "quantization_config", "text_config.quantization_config" ...
  std::vector<ConfigGroup> groups;
  std::vector<std::string> ignore;  // mxfp4: modules_to_not_convert
  std::optional<QuantArgs> kv_cache;
  std::vector<std::pair<std::string, Json>> unknown;
};

// Throws Error naming field and value for what cannot be understood; unknown fields are kept and
// warned about once each.
QuantSection parse_quant_section(const Json& config, const std::string& file,
                                 std::vector<std::string>& warnings);

}  // namespace moebius
