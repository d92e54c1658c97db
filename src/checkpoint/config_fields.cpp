// SPDX-License-Identifier: Apache-2.0
// Implements the readers of members, and words their errors (config_fields.h).
#include "checkpoint/config_fields.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "base/json_shown.h"
#include "checkpoint/config_defaults.h"

namespace moebius {

std::string ConfigFields::label(std::string_view name) const {
  return fmt::format("{}: {}{}", path_, where_, name);
}

void ConfigFields::wrong(std::string_view name, const Json& found,
                         std::string_view expected) const {
  const bool scalar = !found.is_array() && !found.is_object();
  fail_at({"config", path_, "", "", where_ + std::string(name)}, "{} is {}{}; expected {}",
          label(name), kind_name(found.kind()),
          scalar && !found.is_null() ? " (" + shown(found) + ")" : "", expected);
}

std::pair<std::string_view, const Json*> ConfigFields::get(Names names) const {
  bool absent = true;
  std::pair<std::string_view, const Json*> first{{}, nullptr};
  for (const std::string_view name : names) {
    const Json* value = object_.find(name);
    if (value != nullptr) absent = false;  // null means none, whatever the default is
    if (value == nullptr || value->is_null()) continue;
    if (first.second == nullptr) {
      first = {name, value};
    } else if (value->is_integer() && first.second->is_integer() &&
               value->as_int() != first.second->as_int()) {
      fail("{} is {} but {} is {}; expected one value", label(first.first), first.second->dump(),
           name, value->dump());
    }
  }
  if (const Json* defaults = absent ? object_.find(kDefaultsMember) : nullptr)
    for (const std::string_view name : names)
      if (const Json* value = defaults->find(name)) return {name, value};
  return first;
}

std::optional<int64_t> ConfigFields::integer(Names names, int64_t low, int64_t high) const {
  const auto [name, value] = get(names);
  if (value == nullptr) return std::nullopt;
  if (!value->is_integer() || !value->as_int() || *value->as_int() < low || *value->as_int() > high)
    wrong(name, *value, fmt::format("an integer between {} and {}", low, high));
  return *value->as_int();
}

int64_t ConfigFields::integer_or(Names names, int64_t fallback, int64_t low, int64_t high) const {
  return integer(names, low, high).value_or(fallback);
}

int64_t ConfigFields::require(Names names, int64_t low, int64_t high) const {
  if (const auto value = integer(names, low, high)) return *value;
  fail_at({"config", path_, "", "", where_ + std::string(*names.begin())},
          "{} is missing; expected an integer between {} and {}", label(*names.begin()), low, high);
}

std::optional<double> ConfigFields::number(Names names) const {
  const auto [name, value] = get(names);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number() || !std::isfinite(value->as_double()))
    wrong(name, *value, "a finite number");
  return value->as_double();
}

std::optional<bool> ConfigFields::boolean(Names names) const {
  const auto [name, value] = get(names);
  if (value == nullptr) {
    const bool null = std::any_of(names.begin(), names.end(),
                                  [&](std::string_view n) { return object_.find(n) != nullptr; });
    return null ? std::optional(false) : std::nullopt;
  }
  if (!value->is_bool()) wrong(name, *value, "true or false");
  return value->as_bool();
}

std::optional<std::string> ConfigFields::string(Names names) const {
  const auto [name, value] = get(names);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong(name, *value, "a string");
  return value->as_string();
}

std::vector<int64_t> ConfigFields::integers(Names names, int64_t low, int64_t high) const {
  const auto [name, value] = get(names);
  std::vector<int64_t> out;
  if (value == nullptr) return out;
  if (!value->is_array()) wrong(name, *value, "an array of integers");
  for (const Json& item : value->items()) {
    if (!item.is_integer() || !item.as_int() || *item.as_int() < low || *item.as_int() > high)
      wrong(fmt::format("{}[{}]", name, out.size()), item,
            fmt::format("an integer between {} and {}", low, high));
    out.push_back(*item.as_int());
  }
  return out;
}

std::vector<std::string> ConfigFields::strings(Names names) const {
  const auto [name, value] = get(names);
  std::vector<std::string> out;
  if (value == nullptr) return out;
  if (!value->is_array()) wrong(name, *value, "an array of strings");
  for (const Json& item : value->items()) {
    if (!item.is_string()) wrong(fmt::format("{}[{}]", name, out.size()), item, "a string");
    out.push_back(item.as_string());
  }
  return out;
}

}  // namespace moebius
