// SPDX-License-Identifier: Apache-2.0
// Describes quantization methods: the values of `quant_method` in a config. One list (list.cpp)
// holds all known methods, also those that are refused. A method has a name, a parser of its
// configuration, names of a module's tensors, and a way from tensors to a scheme; schemes, format
// readers and kernels are shared by all methods.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/formats/format.h"
#include "checkpoint/quant_config_parse.h"
#include "checkpoint/quant_fields.h"

namespace moebius {

// A tensor suffix that a method uses for a role, in addition to that of suffix_of().
struct RoleAlias {
  std::string_view suffix;
  Role role;
  bool usual = false;  // true: the method's own name; false: a spelling that occurs in files
};

// A module that stores quantized tensors and whose scheme is not decided yet.
struct StoredModule {
  std::string_view name;  // dotted, as in the file
  // Name of the fused tensor that the module is a piece of; else equal to name.
  std::string_view stored_name;
  bool routed_expert = false;
  // The module's tensors, which a method may move to the role under which the format reader expects
  // them.
  ModuleTensors& tensors;
  const TensorStore& store;
  bool embedding = false;
};

// The rules of a method whose quantized modules are recognized by their tensors. The tensors alone
// decide whether a module is quantized; the configuration supplies the numbers, and contradictions
// become warnings.
class MethodRules {
 public:
  MethodRules() = default;
  MethodRules(const MethodRules&) = delete;
  MethodRules& operator=(const MethodRules&) = delete;
  virtual ~MethodRules() = default;
  // Returns the scheme of a module that stores quantized tensors, with the rule that gave the
  // numbers. Throws Error if tensors and configuration contradict each other.
  virtual SchemeDecision decide(const StoredModule& module) const = 0;
  // Returns the scheme that the configuration alone gives a module, before its tensors are known.
  virtual Scheme declared(std::string_view module) const;
  // Returns the role under which files store what the format reader expects under `role`; decide()
  // moves it.
  virtual Role stored_role(const Scheme&, Role role) const { return role; }
  // Returns the rule by which the configuration calls a module dense ("modules_to_not_convert
  // 'lm_head'"), or "" if it calls the module quantized.
  virtual std::string dense_by(std::string_view module) const = 0;
  // Returns true if the configuration lists dense modules at all.
  virtual bool lists_dense() const { return true; }
  // Returns a few words about the number format, which are compared between files of one folder; ""
  // is not compared.
  virtual std::string summary() const { return ""; }
};

// Arguments of one parse() call.
struct MethodConfig {
  const Json& section;  // the method's section, an object
  const Json& config;   // the whole config.json
  QuantSection& out;
  QuantFieldsContext& context;
};

struct QuantMethod {
  std::string_view name;       // name that `inspect` prints
  std::string_view spellings;  // names in files: words separated by spaces
  // Fills groups and ignore of the section (rules by name), or its rules (modules known by their
  // tensors). Null: the method is refused.
  void (*parse)(const MethodConfig&) = nullptr;
  std::span<const RoleAlias> aliases{};
  // For a refused method: the reason, and the tool that converts such folders.
  std::string_view refusal{};
};

std::span<const QuantMethod> quant_methods();
const QuantMethod* find_method(std::string_view spelling);

// Files that are searched for the configuration if config.json has none, in this order.
struct ConfigFile {
  std::string_view name;
  std::string_view method;  // name of the method if the file itself names none
};
std::span<const ConfigFile> other_config_files();

// Declares the parse() functions of the supported methods.
void parse_compressed_tensors(const MethodConfig& c);
void parse_native_mxfp4(const MethodConfig& c);
void parse_fp8(const MethodConfig& c);
void parse_modelopt(const MethodConfig& c);
void parse_gptq(const MethodConfig& c);
void parse_awq(const MethodConfig& c);
void parse_auto_round(const MethodConfig& c);
void parse_quark(const MethodConfig& c);
void parse_fbgemm_fp8(const MethodConfig& c);
void parse_mlx(const MethodConfig& c);

}  // namespace moebius
