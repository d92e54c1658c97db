// SPDX-License-Identifier: Apache-2.0
// Reads members of a quantization_config object with type checks. Errors read "config.json:
// quantization_config.a.b is 9; expected ..."; each member that no reader asked for becomes one
// warning.
#pragma once
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"

namespace moebius {

// Collects what the readers of all objects of one config find.
struct QuantFieldsContext {
  std::string file;  // name in messages
  std::vector<std::string>* warnings = nullptr;
  size_t unknown = 0;            // members that no reader asked for
  std::set<std::string> warned;  // last components of their paths

  void warn(std::string text) { warnings->push_back(file + ": " + std::move(text)); }
};

// Passed as the list of known fields: no member is unknown then.
inline constexpr std::string_view kAnyFields = "*";

class QuantFields {
 public:
  // Throws Error unless `object` is an object; warns about members that are not among the words of
  // `known`.
  QuantFields(const Json& object, std::string path, QuantFieldsContext& context,
              std::string_view known);

  const Json* find(std::string_view key) const;  // returns a member; a null member counts as absent
  std::optional<std::string> text(std::string_view key) const;
  // Returns a string in ASCII lower case.
  std::optional<std::string> lower_text(std::string_view key) const;
  std::optional<bool> boolean(std::string_view key) const;
  std::optional<int64_t> integer(std::string_view key) const;
  // Reads a list of strings, or one string.
  std::vector<std::string> texts(std::string_view key) const;

  std::string path(std::string_view key) const {
    if (path_.empty()) return std::string(key);  // the section is a file of its own
    return key.empty() ? path_ : path_ + "." + std::string(key);
  }
  QuantFieldsContext& context() const { return context_; }
  // Returns a list of two integers from 1 to `most`; nothing for another value.
  std::optional<std::pair<int64_t, int64_t>> positive_pair(std::string_view key,
                                                           int64_t most) const;
  // Throws Error "<file>: <path>.<key> is <value>; <expected>".
  [[noreturn]] void reject(std::string_view key, std::string_view expected) const;

 private:
  const Json& object_;
  std::string path_;
  QuantFieldsContext& context_;
};

}  // namespace moebius
