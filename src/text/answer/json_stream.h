// SPDX-License-Identifier: Apache-2.0
// Passes on a JSON value that a model writes, byte by byte. The passed bytes can always be
// completed to a value: commas, keys and numbers are held back until what follows has come. Common
// errors of models are corrected: control characters in strings, unknown escapes, halves of
// surrogate pairs, Python's words.
#pragma once
#include <cstdint>
#include <optional>
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
  explicit JsonStream(Root root) : root_(root) {}
  // Consumes one byte and appends to `out` what can be passed on.
  Take put(char c, std::string& out);
  // Appends what completes the passed bytes to a JSON value.
  void close(std::string& out);
  bool started() const { return state_ != State::kStart; }

 private:
  enum class State : uint8_t {
    kStart,
    kValue,
    kFirstValue,
    kFirstKey,
    kKey,
    kColon,
    kAfter,
    kString,
    kEscape,
    kHex,
    kScalar,
    kDone,
  };
  Take value(char c, std::string& out);
  Take string_byte(char c, std::string& out);
  Take escape_byte(char c, std::string& out);
  Take hex_byte(char c, std::string& out);
  Take scalar_byte(char c, std::string& out);
  Take ended(std::string& out, Take at_root);
  void string_text(std::string_view text, std::string& out);
  void flush_surrogate(std::string& out);

  const Root root_;
  State state_ = State::kStart;
  std::string stack_;  // the '{' and '[' that are open
  std::string held_;   // bytes that were not passed on yet
  std::string scalar_, escape_, surrogate_;
  bool key_ = false;  // the current string is a key
};

inline constexpr std::string_view kJsonSpaces = " \t\r\n";
inline bool is_json_space(char c) { return kJsonSpaces.find(c) != std::string_view::npos; }

// Appends text as it is written within the quotes of a JSON string.
void append_json_text(std::string& out, std::string_view text);

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
