// SPDX-License-Identifier: Apache-2.0
#include "serve/fields.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace moebius {

void missing(const std::string& path) { refuse("missing", path, "{} is missing", path); }

void wrong_type(const Json& value, const std::string& path, std::string_view expected) {
  refuse("invalid_type", path, "{} is {}; expected {}", printable(path), kind_name(value.kind()),
         expected);
}

Fields fields_of(const Json& value, std::string path) {
  if (!value.is_object()) wrong_type(value, path, "an object");
  return {value, std::move(path)};
}

int64_t integer_at(const Json& value, const std::string& path, int64_t low, int64_t high) {
  if (!value.is_number()) wrong_type(value, path, "an integer");
  const double d = value.as_double();
  if (value.kind() == Json::Kind::kDouble && d != std::floor(d))
    wrong_type(value, path, "an integer");
  std::optional<int64_t> v = value.as_int();
  if (!v && value.kind() == Json::Kind::kDouble && std::abs(d) < 9e18) v = static_cast<int64_t>(d);
  if (!v || *v < low || *v > high)
    refuse("out_of_range", path, "{} is {}; expected {} to {}", printable(path), value.dump(), low,
           high);
  return *v;
}

const Json* Fields::find(std::string_view name) const {
  const Json* value = object_.find(name);
  return value == nullptr || value->is_null() ? nullptr : value;
}

std::string Fields::path(std::string_view name) const {
  return path_.empty() ? std::string(name) : fmt::format("{}.{}", path_, name);
}

bool Fields::boolean(std::string_view name, bool otherwise) const {
  const Json* value = find(name);
  if (value == nullptr) return otherwise;
  if (!value->is_bool()) wrong_type(*value, path(name), "a boolean");
  return value->as_bool();
}

std::optional<int64_t> Fields::integer(std::string_view name, int64_t low, int64_t high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  return integer_at(*value, path(name), low, high);
}

std::optional<double> Fields::number(std::string_view name, double low, double high) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) wrong_type(*value, path(name), "a number");
  const double v = value->as_double();
  if (!(v >= low && v <= high))
    refuse("out_of_range", path(name), "{} is {}; expected {} to {}", path(name), value->dump(),
           low, high);
  return v;
}

std::optional<std::string> Fields::string(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) wrong_type(*value, path(name), "a string");
  return value->as_string();
}

const Json& Fields::required(std::string_view name) const {
  const Json* value = find(name);
  if (value == nullptr) missing(path(name));
  return *value;
}

std::string Fields::required_string(std::string_view name) const {
  const auto text = string(name);
  if (!text) missing(path(name));
  return *text;
}

std::string Fields::word(std::string_view name,
                         std::initializer_list<std::string_view> words) const {
  std::string out = required_string(name), all;
  if (std::find(words.begin(), words.end(), out) != words.end()) return out;
  for (const std::string_view& w : words)
    all += fmt::format("{}{}", all.empty() ? "" : &w == words.end() - 1 ? " or " : ", ", w);
  invalid(path(name), "{} is '{}'; expected {}", path(name), printable(out, 40), all);
}

const Json* Fields::object(std::string_view name) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_object()) wrong_type(*value, path(name), "an object");
  return value;
}

const Json* Fields::array(std::string_view name, std::string_view expected) const {
  const Json* value = find(name);
  if (value != nullptr && !value->is_array()) wrong_type(*value, path(name), expected);
  return value;
}

std::vector<std::string> Fields::strings(std::string_view name, size_t most, bool alone) const {
  std::vector<std::string> out;
  const auto add = [&](const Json& value, const std::string& at) {
    if (!value.is_string()) wrong_type(value, at, "a string");
    const size_t bytes = value.as_string().size();
    if (bytes == 0 || bytes > most)
      refuse("out_of_range", at, "{} has {} bytes; expected 1 to {}", at, bytes, most);
    out.push_back(value.as_string());
  };
  const Json* value = find(name);
  if (value == nullptr) return out;
  if (alone && value->is_string())
    add(*value, path(name));
  else
    array(name, alone ? "a string or an array of strings" : "an array of strings");
  for (size_t i = 0; value->is_array() && i < value->items().size(); ++i)
    add(value->items()[i], fmt::format("{}[{}]", path(name), i));
  return out;
}

}  // namespace moebius
