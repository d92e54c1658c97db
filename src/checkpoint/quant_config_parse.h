// SPDX-License-Identifier: Apache-2.0
// The quantization section of a config.json as values, before any module is matched against it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/quant_config.h"

namespace moebius {

class MethodRules;  // methods/method.h
struct QuantMethod;

struct QuantSection {
  const QuantMethod* method = nullptr;  // null when there is no section
  std::string version;
  std::string
      path;  // of the section inside config.json: "quantization_config", "text_config.quantization_config" ...
  std::vector<ConfigGroup> groups;           // rules by name
  std::shared_ptr<const MethodRules> rules;  // or modules are known by their tensors
  std::vector<std::string> ignore;           // mxfp4: modules_to_not_convert
  std::optional<QuantArgs> kv_cache;
  std::vector<std::pair<std::string, Json>> unknown;
};

// Throws Error naming field and value for what cannot be understood; unknown fields are kept and
// warned about once each.
QuantSection parse_quant_section(const Json& config, const std::string& file,
                                 std::vector<std::string>& warnings);
// The same of a file of its own beside config.json. method: where the file names none.
QuantSection parse_quant_file(const Json& content, const std::string& file, std::string_view method,
                              const Json& config, std::vector<std::string>& warnings);

}  // namespace moebius
