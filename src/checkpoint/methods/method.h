// SPDX-License-Identifier: Apache-2.0
// Quantization methods: what `quant_method` of a folder may say. One list (list.cpp) holds every
// method that is known, also those that are refused. A method is a name, how its configuration is
// read, what it calls the tensors of a module, and how a module's tensors become a scheme; the
// schemes, readers and kernels are those of all methods.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/formats/format.h"
#include "checkpoint/quant_config_parse.h"
#include "checkpoint/quant_fields.h"

namespace moebius {

// A suffix that a method uses for a role, beside those of suffix_of().
struct RoleAlias {
  std::string_view suffix;
  Role role;
  bool usual = false;  // what the method itself calls it; else a spelling that is met
};

// A module that stores quantized tensors, before its scheme is known.
struct StoredModule {
  std::string_view name;         // dotted, as in the file
  std::string_view stored_name;  // of the fused tensor it is cut from; else the same
  bool routed_expert = false;
  // A method may move a tensor to the role under which its reader looks for it.
  ModuleTensors& tensors;
  const TensorStore& store;
  bool embedding = false;
};

// What a configuration says, for methods whose modules are known by their tensors. Whether a module
// is quantized the tensors alone decide; the configuration gives the numbers, and what it says
// otherwise becomes a warning.
class MethodRules {
 public:
  MethodRules() = default;
  MethodRules(const MethodRules&) = delete;
  MethodRules& operator=(const MethodRules&) = delete;
  virtual ~MethodRules() = default;
  // The scheme of a module that stores quantized tensors, with the rule that gave the numbers.
  // Throws Error where tensors and configuration contradict each other.
  virtual SchemeDecision decide(const StoredModule& module) const = 0;
  // The scheme that the configuration alone gives a module, before its tensors are there.
  virtual Scheme declared(std::string_view module) const;
  // The role under which files store what the reader of a scheme finds under `role`: decide() moves it.
  virtual Role stored_role(const Scheme&, Role role) const { return role; }
  // The rule by which the configuration calls a module dense ("modules_to_not_convert 'lm_head'"),
  // empty: it calls it quantized.
  virtual std::string dense_by(std::string_view module) const = 0;
  // Whether the configuration says at all which modules are dense.
  virtual bool lists_dense() const { return true; }
  // What the modules are stored in, in a few words, to compare two files of one folder; empty: not
  // compared.
  virtual std::string summary() const { return ""; }
};

// One parse() call.
struct MethodConfig {
  const Json& section;  // an object
  const Json& config;   // the whole config.json
  QuantSection& out;
  QuantFieldsContext& context;
};

struct QuantMethod {
  std::string_view name;       // what inspect calls it
  std::string_view spellings;  // what files call it: words separated by spaces
  // Fills groups and ignore of the section (rules by name), or its rules (modules known by their
  // tensors). Null: the method is refused.
  void (*parse)(const MethodConfig&) = nullptr;
  std::span<const RoleAlias> aliases{};
  std::string_view refusal{};  // what it is, and which tool converts it
};

std::span<const QuantMethod> quant_methods();
const QuantMethod* find_method(std::string_view spelling);

// Files that hold the configuration where config.json has none, in the order they are looked for.
struct ConfigFile {
  std::string_view name;
  std::string_view method;  // where the file itself names none
};
std::span<const ConfigFile> other_config_files();

// parse() of every method that is run.
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
