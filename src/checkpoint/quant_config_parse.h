// SPDX-License-Identifier: Apache-2.0
// Parses the quantization section of a config.json to values, before modules are matched against
// it.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/json.h"
#include "checkpoint/quant_config.h"

namespace moebius {

class MethodRules;  // defined in methods/method.h
struct QuantMethod;

struct QuantSection {
  const QuantMethod* method = nullptr;  // the section's method; null: there is no section
  std::string version;
  // Path of the section in config.json: "quantization_config", "text_config.quantization_config",
  // ...
  std::string path;
  std::vector<ConfigGroup> groups;  // rules that recognize modules by name
  // Rules of a method that recognizes modules by their tensors; null: groups are the rules.
  std::shared_ptr<const MethodRules> rules;
  // Modules that are not quantized (mxfp4: modules_to_not_convert).
  std::vector<std::string> ignore;
  std::optional<QuantArgs> kv_cache;
};

// Parses the section. Throws Error that names field and value of what is not supported; unknown
// fields are warned about once.
QuantSection parse_quant_section(const Json& config, const std::string& file,
                                 std::vector<std::string>& warnings);
// Parses the section from a file of its own beside config.json. `method` is used if the file names
// none.
QuantSection parse_quant_file(const Json& content, const std::string& file, std::string_view method,
                              const Json& config, std::vector<std::string>& warnings);

}  // namespace moebius
