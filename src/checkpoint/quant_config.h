// SPDX-License-Identifier: Apache-2.0
// The quantization section of a config, and the rules that give a module its scheme. Methods that
// recognize modules by their tensors have rules of their own (methods/method.h). For the others,
// matching follows compressed-tensors (exact name, regular expression, class name); if that leaves
// a quantized module without a scheme, vLLM's order is tried. Each decision records the rule that
// made it.
#pragma once
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "quant/scheme.h"

namespace moebius {

class MethodRules;  // defined in methods/method.h
struct RoleAlias;

struct ConfigGroup {
  std::string name;
  std::vector<std::string> targets;
  Scheme scheme;
};

struct SchemeDecision {
  Scheme scheme;  // scheme of the module; dense if nothing matched or the module is ignored
  // ^ Rule that decided, for people: "group_0 target 'Linear' (class)", "ignore 're:.*mlp.gate$'",
  // "no target matches".
  std::string rule;
  bool matched = false;
  bool ignored = false;
  // A warning for the user if compressed-tensors' and vLLM's orders of matching disagree, equal for
  // all modules concerned; else empty.
  std::string warning;
};

class QuantConfig {
 public:
  // Finds the section in `config`, the whole config.json, at its three possible places. Without a
  // section is_quantized() is false. Each unknown field is added to `warnings` once.
  // Throws Error that names field and value of what is not supported.
  static QuantConfig parse(const Json& config, const std::string& path,
                           std::vector<std::string>& warnings);
  // Parses the section from a file of its own (other_config_files of methods/method.h). `method` is
  // used if the file names none.
  static QuantConfig parse_file(const Json& content, const std::string& path,
                                std::string_view method, const Json& config,
                                std::vector<std::string>& warnings);
  QuantConfig();
  QuantConfig(QuantConfig&&) noexcept = default;
  QuantConfig& operator=(QuantConfig&&) noexcept = default;

  bool is_quantized() const;
  // Name of the method: "compressed-tensors", "fp8", ...; "": the model is dense.
  std::string_view method() const;
  // Return the method's names for a module's tensors, and its rules from tensors to a scheme;
  // without rules, groups() decide by name.
  std::span<const RoleAlias> aliases() const;
  const MethodRules* rules() const;
  const std::string& version() const;
  const std::vector<ConfigGroup>& groups() const;
  const std::vector<std::string>& ignore() const;
  const std::optional<QuantArgs>& kv_cache() const;
  // Returns the scheme that the groups give a module by its name. class_name: class of the module
  // in transformers, "Linear", "Embedding", ...
  SchemeDecision decide(std::string_view module, std::string_view class_name) const;
  // Returns the scheme in vLLM's order, for a module whose tensors are quantized although decide()
  // says dense: classes are not ignore entries, a class may be part of a longer one, and the module
  // may be listed under the name of a fused layer or another exporter's path.
  SchemeDecision decide_like_vllm(std::string_view module, std::string_view class_name) const;

 private:
  struct Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace moebius
