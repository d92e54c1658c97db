// SPDX-License-Identifier: Apache-2.0
// Implements config_defaults.h. tests/python/make_config_defaults.py writes the table.
#include "checkpoint/config_defaults.h"

#include <map>
#include <string>

#include "checkpoint/families.h"

namespace moebius {
namespace {

struct TypeDefaults {
  std::string_view model_types;  // names, separated by spaces
  std::string_view fields;       // a JSON object
};

constexpr TypeDefaults kTypeDefaults[] = {
#include "checkpoint/config_defaults.inc"
};

std::map<std::string, Json, std::less<>> read_defaults() {
  std::map<std::string, Json, std::less<>> out;
  for (const TypeDefaults& row : kTypeDefaults)
    for_each_word(row.model_types, [&](std::string_view word, bool) {
      out.emplace(word, parse_json(row.fields, "config_defaults.inc"));
    });
  return out;
}

}  // namespace

const Json* config_defaults(std::string_view model_type) {
  static const std::map<std::string, Json, std::less<>> kAll = read_defaults();
  const auto it = kAll.find(model_type);
  return it != kAll.end() ? &it->second : nullptr;
}

}  // namespace moebius
