// SPDX-License-Identifier: Apache-2.0
#include "model/arch/layer_fields.h"

#include "base/error.h"
#include "base/json_shown.h"
#include "checkpoint/families.h"

namespace moebius {
namespace {

constexpr std::string_view kName = "per_layer_config";

const Json& own_of(const ModelConfig& config, size_t layer) {
  static const Json kNothing = Json::object();
  const Json* all = config.text.find(kName);
  const Json* own = all != nullptr && all->is_object() ? all->find(std::to_string(layer)) : nullptr;
  return own != nullptr && own->is_object() ? *own : kNothing;
}

}  // namespace

bool has_layer_fields(const ModelConfig& config) { return config.text.find(kName) != nullptr; }

ConfigFields layer_fields(const ModelConfig& config, size_t layer) {
  return {own_of(config, layer), "config.json", fmt::format("{}.{}.", kName, layer)};
}

void refuse_layer_fields(const ModelConfig& config, std::string_view read) {
  const ConfigFields f(config.text, "config.json", "");
  const Json* all = f.find(kName);
  if (all == nullptr || all->is_null()) return;
  if (!all->is_object()) f.wrong(kName, *all, "an object with an object for each layer, or null");
  for (const auto& [layer, own] : all->members()) {
    if (!own.is_object())
      f.wrong(fmt::format("{}.{}", kName, printable(layer, 20)), own, "an object");
    for (const auto& [name, value] : own.members()) {
      const Json* model = f.find(name);
      if (in_list(read, name) || (model != nullptr && model->dump() == value.dump())) continue;
      fail_at({"config", f.path(), "", "", fmt::format("{}.{}.{}", kName, layer, name)},
              "{}.{}.{} is {}; a layer of {} cannot have its own", f.label(kName),
              printable(layer, 20), printable(name, 80), printable(shown(value), 80),
              config.family);
    }
  }
}

}  // namespace moebius
