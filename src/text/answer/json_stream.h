// SPDX-License-Identifier: Apache-2.0
// A JSON value as a model writes it, byte by byte. What has been passed on can always be completed:
// a comma, a key or a number waits until what follows has come. Habits of models are mended on the
// way: control characters in strings, unknown escapes, halves of surrogate pairs, Python's words.
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
    kWhole,        // the value ends with this byte
    kWholeBefore,  // it ended before this byte, which is not taken
    kBroken,       // this byte does not fit, and is not taken
  };
  explicit JsonStream(Root root) : root_(root) {}
  // Appends to `out` what can be passed on.
  Take put(char c, std::string& out);
  // Appends what makes the passed bytes whole.
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
  std::string stack_;  // of '{' and '['
  std::string held_;   // since the last byte that could be passed on
  std::string scalar_, escape_, surrogate_;
  bool key_ = false;  // the string in hand is one
};

inline constexpr std::string_view kJsonSpaces = " \t\r\n";
inline bool is_json_space(char c) { return kJsonSpaces.find(c) != std::string_view::npos; }

// As it stands within quotes.
void append_json_text(std::string& out, std::string_view text);

// What stands between the quotes of a Python string, byte by byte, as JSON text. Escapes are those
// of Python (names of characters, \N{...}, are left as they are written); what is no escape keeps its
// backslash, but for JSON's \/ between double quotes. Halves of surrogate pairs are joined.
class PythonString {
 public:
  explicit PythonString(char quote = '"') : quote_(quote) {}
  // Appends to `out` what can be passed on. False: this byte is the quote that ends the string.
  bool put(char c, std::string& out);

 private:
  bool escape_byte(char c, std::string& out);  // false: the escape ended before this byte
  void code(uint32_t code, std::string& out);
  void text(std::string_view text, std::string& out);
  char quote_;
  std::string escape_;      // as far as it has come, with its backslash
  uint32_t surrogate_ = 0;  // the first half of a pair
};

// One value in Python's or JSON's words ('a', None, [1, True], {"a": 2}) as JSON; nothing: it is
// none. Its depth is bounded.
std::optional<std::string> python_to_json(std::string_view text);
// A scalar of either; nothing: it is none.
std::optional<std::string> scalar_to_json(std::string_view text);
// The same of JSON alone, mended as a stream is.
std::optional<std::string> json_value(std::string_view text);

}  // namespace moebius
