// SPDX-License-Identifier: Apache-2.0
// Reads members of JSON objects with type checks and errors that name file and field. `where` is
// for example "tokenizer.json: pre_tokenizer".
#pragma once
#include <string>

#include "base/error.h"
#include "base/json.h"
#include "text/unicode.h"

namespace moebius {

inline bool has_value(const Json& object, std::string_view key) {
  const Json* j = object.find(key);
  return j != nullptr && !j->is_null();
}

inline const Json& require_field(const Json& object, std::string_view key,
                                 const std::string& where) {
  if (!object.is_object()) fail("{} is {}; expected an object", where, kind_name(object.kind()));
  const Json* j = object.find(key);
  if (j == nullptr) fail("{}.{} is missing", where, key);
  return *j;
}

inline const std::string& string_field(const Json& object, std::string_view key,
                                       const std::string& where) {
  const Json& j = require_field(object, key, where);
  if (!j.is_string()) fail("{}.{} is {}; expected a string", where, key, kind_name(j.kind()));
  return j.as_string();
}

// Calls each(item, where of the item) for the items of an array. Throws Error.
template <class Each>
void for_each_item(const Json& object, std::string_view key, const std::string& where,
                   const Each& each) {
  const Json& list = require_field(object, key, where);
  if (!list.is_array()) fail("{}.{} is {}; expected an array", where, key, kind_name(list.kind()));
  for (size_t i = 0; i < list.items().size(); ++i)
    each(list.items()[i], fmt::format("{}.{}[{}]", where, key, i));
}

inline std::string one_character(const Json& json, std::string_view key, const std::string& where) {
  const std::string& text = string_field(json, key, where);
  if (text.empty() || unicode::decode(text.data()).length != text.size())
    fail("{}.{} is '{}'; expected one character", where, key, printable(text));
  return text;
}

inline bool bool_field(const Json& object, std::string_view key, bool absent,
                       const std::string& where) {
  if (!has_value(object, key)) return absent;
  const Json& j = *object.find(key);
  if (!j.is_bool()) fail("{}.{} is {}; expected true or false", where, key, kind_name(j.kind()));
  return j.as_bool();
}

// Returns an integer in [low, high]. Throws Error.
inline int64_t int_field(const Json& object, std::string_view key, int64_t low, int64_t high,
                         const std::string& where) {
  const Json& j = require_field(object, key, where);
  const auto value = j.is_integer() ? j.as_int() : std::nullopt;
  if (!value || *value < low || *value > high)
    fail("{}.{} is {}; expected an integer in {}..{}", where, key,
         j.is_integer() ? j.dump() : std::string(kind_name(j.kind())), low, high);
  return *value;
}

}  // namespace moebius
