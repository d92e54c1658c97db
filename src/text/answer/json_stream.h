// SPDX-License-Identifier: Apache-2.0
// Passes on a JSON value that a model writes, byte by byte. The passed bytes can always be
// completed to a value: commas, keys and numbers are held back until what follows has come. Common
// errors of models are corrected: control characters in strings, unknown escapes, halves of
// surrogate pairs, Python's words.
#pragma once
#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace moebius {

class JsonStream {
 public:
  enum class Root : uint8_t { kObject, kAny };
  enum class Take : uint8_t {
    kMore,
    kWhole,        // the value ended with this byte
    kWholeBefore,  // the value ended before this byte, which was not consumed
    kBroken,       // this byte does not fit, and was not consumed
  };
  // `mark`, if it is not empty: the value is written as Gemma does, with bare keys, strings between
  // these marks that have no escapes, and words that are strings without marks.
  explicit JsonStream(Root root, std::string_view mark = {})
      : root_(root), mark_(mark), step_(&JsonStream::start) {}
  // Consumes one byte and appends to `out` what can be passed on.
  Take put(char c, std::string& out) { return (this->*step_)(c, out); }
  // Appends what completes the passed bytes to a JSON value.
  void close(std::string& out);

 private:
  // The state: the function that takes the next byte.
  using Step = Take (JsonStream::*)(char c, std::string& out);
  bool bare() const { return !mark_.empty(); }
  bool space(char c);  // keeps white space between values, keys and marks
  Take start(char c, std::string& out);
  Take any_value(char c, std::string& out);
  Take first_value(char c, std::string& out);
  Take first_key(char c, std::string& out);
  Take key(char c, std::string& out);
  Take colon(char c, std::string& out);
  Take after(char c, std::string& out);
  Take done(char, std::string&) { return Take::kWholeBefore; }
  Take value(char c, std::string& out);
  Take closing(char c, std::string& out);
  Take string_byte(char c, std::string& out);
  Take escape_byte(char c, std::string& out);
  Take hex_byte(char c, std::string& out);
  Take scalar_byte(char c, std::string& out);
  // Read keys, strings and scalars as Gemma writes them.
  Take mark_byte(char c, std::string& out);
  Take marked_byte(char c, std::string& out);
  Take bare_key(char c, std::string& out);
  Take bare_scalar(char c, std::string& out);
  Take ended(Take at_root);
  void pass_held(std::string_view text, std::string& out);
  void string_text(std::string_view text, std::string& out);
  void flush_surrogate(std::string& out);

  const Root root_;
  const std::string_view mark_;
  Step step_;
  std::string stack_;   // the '{' and '[' that are open
  std::string held_;    // bytes that were not passed on yet
  std::string scalar_;  // bytes of a scalar, or of a bare key or marked string
  std::string escape_, surrogate_;
  bool key_ = false;  // the current string is a key
};

inline constexpr size_t kNoMarker = SIZE_MAX;
struct MarkerAt {
  size_t marker = kNoMarker;  // marker that the text ends with
  // Length in bytes of the marker; if there is none, of the text's end that may begin a marker.
  size_t bytes = 0;
};
// Finds a marker at the end of a text that has no complete marker before its last byte.
inline MarkerAt marker_at_end(std::string_view text, std::span<const std::string_view> markers) {
  MarkerAt at;
  for (size_t i = 0; i < markers.size(); ++i) {
    const std::string_view m = markers[i];
    if (m.empty()) continue;
    if (text.ends_with(m)) return {i, m.size()};
    for (size_t n = std::min(text.size(), m.size() - 1); n > at.bytes; --n)
      if (text.substr(text.size() - n) == m.substr(0, n)) at.bytes = n;
  }
  return at;
}

inline constexpr std::string_view kJsonSpaces = " \t\r\n";
inline bool is_json_space(char c) { return kJsonSpaces.find(c) != std::string_view::npos; }

// Returns the text without white space at its ends.
inline std::string_view without_spaces(std::string_view text) {
  while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
  return text;
}

// Appends text as it is written within the quotes of a JSON string.
void append_json_text(std::string& out, std::string_view text);
// Returns the text as a JSON string, with its quotes.
std::string json_string(std::string_view text);

// Converts the contents of a Python string, byte by byte, to the contents of a JSON string. Escapes
// are Python's (\N{...} is left as written); unknown escapes keep their backslash, except JSON's \/
// between double quotes. Halves of surrogate pairs are joined.
class PythonString {
 public:
  explicit PythonString(char quote = '"') : quote_(quote) {}
  // Consumes one byte and appends to `out` what can be passed on. Returns false if the byte is the
  // closing quote.
  bool put(char c, std::string& out);

 private:
  bool escape_byte(char c, std::string& out);  // returns false if the escape ended before this byte
  void code(uint32_t code, std::string& out);
  void text(std::string_view text, std::string& out);
  char quote_;
  std::string escape_;      // the escape so far, with its backslash
  uint32_t surrogate_ = 0;  // first half of a surrogate pair
};

// Converts one value in Python's or JSON's syntax ('a', None, [1, True], {"a": 2}) to JSON; nothing
// if the text is no value, or nested too deeply.
std::optional<std::string> python_to_json(std::string_view text);
// Converts a scalar in Python's or JSON's syntax to JSON; nothing if the text is none.
std::optional<std::string> scalar_to_json(std::string_view text);
// Returns a JSON value, corrected as JsonStream does; nothing if the text is none.
std::optional<std::string> json_value(std::string_view text);

}  // namespace moebius
