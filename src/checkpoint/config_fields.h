// SPDX-License-Identifier: Apache-2.0
// Reads members of config.json with type and range checks, under any of several spellings. A null
// member counts as absent, except that it gets no default. Every error names the file, the field,
// what was found and what was expected.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moebius {

class ConfigFields {
 public:
  // `object` must outlive this; `where` precedes field names in messages ("text_config.").
  ConfigFields(const Json& object, std::string path, std::string where)
      : object_(object), path_(std::move(path)), where_(std::move(where)) {}

  using Names = std::initializer_list<std::string_view>;
  // Returns a member, also one that is null; a null pointer if there is none.
  const Json* find(std::string_view name) const { return object_.find(name); }
  bool has(Names names) const { return get(names).second != nullptr; }
  // The readers below return the member under the first name of `names` that is present, and throw
  // Error if two names are present with different values, or the value has the wrong type.
  std::optional<int64_t> integer(Names names, int64_t low, int64_t high) const;
  int64_t integer_or(Names names, int64_t fallback, int64_t low, int64_t high) const;
  int64_t require(Names names, int64_t low, int64_t high) const;
  // Reads a number; throws Error also if it is not finite.
  std::optional<double> number(Names names) const;
  // Reads a truth value; null counts as false, as in Python.
  std::optional<bool> boolean(Names names) const;
  std::optional<std::string> string(Names names) const;
  // Reads an array; returns an empty one if the member is absent.
  std::vector<int64_t> integers(Names names, int64_t low, int64_t high) const;
  std::vector<std::string> strings(Names names) const;
  const std::string& path() const { return path_; }
  // Returns the field's name for messages: "config.json: text_config.hidden_size"
  std::string label(std::string_view name) const;
  [[noreturn]] void wrong(std::string_view name, const Json& found,
                          std::string_view expected) const;

 private:
  std::pair<std::string_view, const Json*> get(Names names) const;
  const Json& object_;
  std::string path_, where_;
};

}  // namespace moebius
