// SPDX-License-Identifier: Apache-2.0
// Reads members of an untrusted JSON object: null counts as absent, numbers are range-checked, and
// errors are ApiErrors that name the member's path.
#pragma once
#include <fmt/format.h>

#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "base/json.h"
#include "serve/api_error.h"

namespace moebius {

class Fields {
 public:
  // `path`: path of the object in messages: "" or "messages[2]".
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // Returns a member; a null pointer if it is absent or null.
  const Json* find(std::string_view name) const;
  bool has(std::string_view name) const { return find(name) != nullptr; }
  std::string path(std::string_view name) const;

  bool boolean(std::string_view name, bool otherwise) const;
  std::optional<int64_t> integer(std::string_view name, int64_t low, int64_t high) const;
  std::optional<double> number(std::string_view name, double low, double high) const;
  std::optional<std::string> string(std::string_view name) const;
  // Return a member that must be there.
  const Json& required(std::string_view name) const;
  std::string required_string(std::string_view name) const;
  // Returns a string that must be there and be one of these.
  std::string word(std::string_view name, std::initializer_list<std::string_view> words) const;
  // Return an object or an array; null if absent.
  const Json* object(std::string_view name) const;
  const Json* array(std::string_view name, std::string_view expected = "an array") const;
  // Returns an array of strings of 1 to `most` bytes each; `alone`: one string may stand for it.
  std::vector<std::string> strings(std::string_view name, size_t most, bool alone = false) const;

 private:
  const Json& object_;
  std::string path_;
};

// Returns a value as an integer (written 1 or 1.0) within the range. Throws ApiError.
int64_t integer_at(const Json& value, const std::string& path, int64_t low, int64_t high);

// Returns the fields of an object. Throws ApiError if the value is none.
Fields fields_of(const Json& value, std::string path);

// Throw ApiError 400; refuse() with a code of its own, and with words that are formatted.
template <class... Args>
[[noreturn]] void refuse(std::string_view code, const std::string& path,
                         fmt::format_string<Args...> words, Args&&... args) {
  throw ApiError(400, code, fmt::format(words, std::forward<Args>(args)...), path);
}
template <class... Args>
[[noreturn]] void invalid(const std::string& path, fmt::format_string<Args...> words,
                          Args&&... args) {
  refuse("invalid_value", path, words, std::forward<Args>(args)...);
}
[[noreturn]] void missing(const std::string& path);
[[noreturn]] void wrong_type(const Json& value, const std::string& path, std::string_view expected);

}  // namespace moebius
