// SPDX-License-Identifier: Apache-2.0
// Finds the quantization section in the places that exporters have used, and the method that reads
// it.
#include "checkpoint/quant_config_parse.h"

#include "checkpoint/methods/method.h"

namespace moebius {
namespace {

struct ConfigSection {
  const Json* section = nullptr;
  std::string path;
};

// Returns the first section that exists; null counts as absent.
ConfigSection find_section(const Json& config) {
  const auto at = [](const Json* object, std::string_view key) -> const Json* {
    const Json* value = object != nullptr ? object->find(key) : nullptr;
    return value != nullptr && !value->is_null() ? value : nullptr;
  };
  if (const Json* s = at(&config, "quantization_config")) return {s, "quantization_config"};
  if (const Json* s = at(at(&config, "text_config"), "quantization_config"))
    return {s, "text_config.quantization_config"};
  if (const Json* s = at(&config, "compression_config")) {
    if (const Json* inner = at(s, "quantization_config"))
      return {inner, "compression_config.quantization_config"};
    return {s, "compression_config"};
  }
  if (const Json* s = at(&config, "quantization"); at(s, "group_size") != nullptr)
    return {s, "quantization"};  // MLX
  return {};
}

// Returns the method of a section without quant_method, from its fields.
std::string_view unnamed_method(const QuantFields& f) {
  if (f.find("config_groups") != nullptr || f.find("sparsity_config") != nullptr)
    return "compressed-tensors";
  const bool mlx = f.find("group_size") != nullptr && f.find("bits") != nullptr;
  return mlx ? "mlx" : "";
}

[[noreturn]] void refuse(const QuantFields& f, const QuantMethod* method) {
  if (method != nullptr)
    f.reject("quant_method",
             fmt::format("this is {}, which is not run: {}", method->name, method->refusal));
  std::string run;
  for (const QuantMethod& m : quant_methods())
    if (m.parse != nullptr) run += fmt::format("{}{}", run.empty() ? "" : ", ", m.name);
  f.reject("quant_method", fmt::format("expected one of {}", run));
}

QuantSection parse_place(const ConfigSection& place, const Json& config, const std::string& file,
                         std::string_view method_of_file, std::vector<std::string>& warnings) {
  QuantSection section;
  if (place.section == nullptr) return section;
  section.path = place.path;
  QuantFieldsContext context{printable(file), &warnings, 0, {}};
  if (!place.section->is_object())
    fail("{}: {} is {}; expected an object", context.file,
         place.path.empty() ? "the top" : place.path, kind_name(place.section->kind()));
  if (place.section->members().empty()) {
    context.warn(fmt::format("{} is empty; the model is taken as dense",
                             place.path.empty() ? "the file" : place.path));
    return section;
  }
  std::vector<std::string> ignored;
  QuantFieldsContext silent{context.file, &ignored, 0, {}};
  const QuantFields f(*place.section, place.path, silent, "");
  std::string stated = f.text("quant_method").value_or(std::string(method_of_file));
  // Older exports of Quark call themselves fp8 or awq.
  if (f.find("global_quant_config") != nullptr) stated = "quark";
  const QuantMethod* method = find_method(stated.empty() ? unnamed_method(f) : stated);
  if (method == nullptr || method->parse == nullptr) refuse(f, method);
  section.method = method;
  method->parse({*place.section, config, section, context});
  return section;
}

}  // namespace

QuantSection parse_quant_section(const Json& config, const std::string& file,
                                 std::vector<std::string>& warnings) {
  return parse_place(find_section(config), config, file, "", warnings);
}

QuantSection parse_quant_file(const Json& content, const std::string& file, std::string_view method,
                              const Json& config, std::vector<std::string>& warnings) {
  return parse_place({&content, ""}, config, file, method, warnings);
}

}  // namespace moebius
