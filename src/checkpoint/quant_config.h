// SPDX-License-Identifier: Apache-2.0
// The quantization section of a folder, and the rules that give a module its scheme. Methods whose
// modules are known by their tensors bring their rules (methods/method.h); for the others matching
// follows compressed-tensors (exact name, regular expression, class name); where that
// leaves a quantized module without a scheme, vLLM's order is tried. Every decision remembers the
// rule that made it.
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

class MethodRules;  // methods/method.h
struct RoleAlias;

struct ConfigGroup {
  std::string name;
  std::vector<std::string> targets;
  Scheme scheme;
};

struct SchemeDecision {
  Scheme scheme;  // dense when nothing matched or the module is ignored
  std::string
      rule;  // "group_0 target 'Linear' (class)", "ignore 're:.*mlp.gate$'", "no target matches"
  bool matched = false;
  bool ignored = false;
  std::string
      warning;  // set when compressed-tensors' and vLLM's order disagree; the same text for every module it concerns
};

class QuantConfig {
 public:
  // `config` is the whole config.json; finds the section in its three places. No section:
  // is_quantized() is false. Unknown fields are kept and appended once each to `warnings`. Throws
  // Error naming field and value for what cannot be run.
  static QuantConfig parse(const Json& config, const std::string& path,
                           std::vector<std::string>& warnings);
  // The same of a file of its own (other_config_files of methods/method.h). method: where the file
  // names none.
  static QuantConfig parse_file(const Json& content, const std::string& path,
                                std::string_view method, const Json& config,
                                std::vector<std::string>& warnings);
  QuantConfig();
  ~QuantConfig();
  QuantConfig(QuantConfig&&) noexcept;
  QuantConfig& operator=(QuantConfig&&) noexcept;

  bool is_quantized() const;
  std::string_view method() const;  // "compressed-tensors", "fp8", ...; "" when dense
  // What the method calls the tensors of a module, and how they become a scheme; no rules: the
  // groups below decide by name.
  std::span<const RoleAlias> aliases() const;
  const MethodRules* rules() const;
  const std::string& version() const;
  const std::vector<ConfigGroup>& groups() const;
  const std::vector<std::string>& ignore() const;
  const std::optional<QuantArgs>& kv_cache() const;
  const std::vector<std::pair<std::string, Json>>& unknown_fields() const;  // path and value
  // class_name: "Linear", "Embedding", ... of the module as transformers names it.
  SchemeDecision decide(std::string_view module, std::string_view class_name) const;
  // vLLM's order, for a module whose tensors are quantized although decide() says dense: classes
  // are no ignore entries, a class may be part of a longer one, and the module may be meant by the
  // name of a fused layer or by another exporter's path.
  SchemeDecision decide_like_vllm(std::string_view module, std::string_view class_name) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace moebius
