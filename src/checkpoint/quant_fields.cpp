// SPDX-License-Identifier: Apache-2.0
// Reads members by type and words their errors (quant_fields.h).
#include "checkpoint/quant_fields.h"

#include <algorithm>
#include <cctype>

#include "base/json_shown.h"
#include "checkpoint/families.h"

namespace moebius {
namespace {

// Most warnings about unknown members: a hostile config must not fill the screen.
constexpr size_t kMaxUnknown = 100;

std::string show(const Json& value) {
  if (value.is_string()) return "'" + printable(value.as_string(), 80) + "'";
  return shown(value, 80);
}

}  // namespace

QuantFields::QuantFields(const Json& object, std::string path, QuantFieldsContext& context,
                         std::string_view known)
    : object_(object), path_(std::move(path)), context_(context) {
  if (!object.is_object())
    fail("{}: {} is {}; expected an object", context_.file, path_, show(object));
  if (known == kAnyFields) return;
  for (const auto& [key, value] : object.members()) {
    if (in_list(known, key) || context_.unknown == kMaxUnknown) continue;
    ++context_.unknown;
    if (context_.warned.insert(key).second)
      context_.warn(
          fmt::format("{} is not a field we know; it is ignored", this->path(printable(key, 80))));
  }
}

const Json* QuantFields::find(std::string_view key) const {
  const Json* value = object_.find(key);
  return value != nullptr && !value->is_null() ? value : nullptr;
}

void QuantFields::reject(std::string_view key, std::string_view expected) const {
  const Json* value = key.empty() ? &object_ : object_.find(key);
  fail("{}: {} is {}; {}", context_.file, path(key), value == nullptr ? "missing" : show(*value),
       expected);
}

std::optional<std::string> QuantFields::text(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) reject(key, "expected a string");
  return value->as_string();
}

std::optional<std::string> QuantFields::lower_text(std::string_view key) const {
  std::optional<std::string> value = text(key);
  if (value)
    for (char& c : *value) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return value;
}

std::optional<bool> QuantFields::boolean(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  if (!value->is_bool()) reject(key, "expected true or false");
  return value->as_bool();
}

std::optional<int64_t> QuantFields::integer(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> number = value->is_integer() ? value->as_int() : std::nullopt;
  if (!number) reject(key, "expected an integer");
  return number;
}

std::optional<std::pair<int64_t, int64_t>> QuantFields::positive_pair(std::string_view key,
                                                                      int64_t most) const {
  const Json* value = find(key);
  if (value == nullptr || !value->is_array() || value->items().size() != 2) return std::nullopt;
  int64_t sides[2];
  for (size_t i = 0; i < 2; ++i) {
    const Json& item = value->items()[i];
    sides[i] = item.is_integer() ? item.as_int().value_or(0) : 0;
    if (sides[i] < 1 || sides[i] > most) return std::nullopt;
  }
  return std::pair(sides[0], sides[1]);
}

std::vector<std::string> QuantFields::texts(std::string_view key) const {
  const Json* value = find(key);
  if (value == nullptr) return {};
  if (value->is_string()) return {value->as_string()};
  if (!value->is_array()) reject(key, "expected a list of strings");
  std::vector<std::string> result;
  for (const Json& item : value->items()) {
    if (!item.is_string())
      fail("{}: {}[{}] is {}; expected a string", context_.file, path(key), result.size(),
           show(item));
    result.push_back(item.as_string());
  }
  return result;
}

}  // namespace moebius
