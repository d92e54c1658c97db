// SPDX-License-Identifier: Apache-2.0
// Classifies Unicode code points. The table is filled once from the properties of the regular
// expression library, so that the hand-written scanners and regular expressions always agree about
// what a letter is.
#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace moebius::unicode {

// Short names of the general categories, in the order of their bits in a mask; the first one: "not
// assigned".
inline constexpr std::string_view kCategories =
    "CnLuLlLtLmLoMnMcMeNdNlNoPcPdPsPePiPfPoSmScSkSoZsZlZpCcCfCsCo";
// Returns the mask of categories that are named by their short names or their first letters,
// separated by spaces: "L Nd".
constexpr uint32_t mask_of(std::string_view names) {
  uint32_t mask = 0;
  while (!names.empty()) {
    const std::string_view name = names.substr(0, names.find(' '));
    for (size_t i = 0; i < kCategories.size(); i += 2)
      if (kCategories.substr(i, name.size()) == name) mask |= uint32_t{1} << (i / 2);
    names.remove_prefix(std::min(name.size() + 1, names.size()));
  }
  return mask;
}
inline constexpr uint32_t kL = mask_of("L"), kM = mask_of("M"), kN = mask_of("N"),
                          kP = mask_of("P"), kS = mask_of("S");
// Bit of a mask above the 30 categories: \s (White_Space).
inline constexpr uint32_t kSpace = uint32_t{1} << 30;

// Maps code points to masks: one category bit, plus kSpace. Values above U+10FFFF count as not
// assigned.
class Table {
 public:
  static const Table& get();  // built on first use, thread-safe
  uint32_t mask(char32_t c) const { return c < 0x110000 ? masks_[classes_[c]] : mask_of("Cn"); }
  bool is_space(char32_t c) const { return c < 0x110000 && (classes_[c] & 32) != 0; }
  bool is_word(char32_t c) const {
    return c < 0x110000 && (classes_[c] & 64) != 0;
  }  // returns true for \w of Unicode TR 18

 private:
  Table();
  uint8_t classes_[0x110000];  // category | 32 space | 64 word
  std::array<uint32_t, 128> masks_;
};

inline bool is_ascii_punctuation(char32_t c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

struct Decoded {
  char32_t code = 0;
  uint32_t length = 0;  // length in bytes
};

// Returns the character at `p`; the text must be valid UTF-8 and not empty.
inline Decoded decode(const char* p) {
  const auto a = static_cast<unsigned char>(p[0]);
  if (a < 0x80) return {a, 1};
  const auto tail = [&](int i) {
    return static_cast<char32_t>(static_cast<unsigned char>(p[i]) & 0x3f);
  };
  if (a < 0xe0) return {(static_cast<char32_t>(a & 0x1f) << 6) | tail(1), 2};
  if (a < 0xf0) return {(static_cast<char32_t>(a & 0x0f) << 12) | (tail(1) << 6) | tail(2), 3};
  return {(static_cast<char32_t>(a & 0x07) << 18) | (tail(1) << 12) | (tail(2) << 6) | tail(3), 4};
}

// Returns the character that ends just before byte `end` (> 0) of valid UTF-8.
inline Decoded decode_before(std::string_view text, size_t end) {
  size_t i = end - 1;
  while (i > 0 && (static_cast<unsigned char>(text[i]) & 0xc0) == 0x80) --i;
  return decode(text.data() + i);
}

void append(std::string& out, char32_t code);  // appends a code point as UTF-8

// Replaces every maximal invalid sequence by U+FFFD, as the published tokenizers and Python do.
std::string lossy(std::string_view bytes);
// Appends `bytes` decoded like lossy(), except the beginning of an incomplete character at the end,
// whose length it returns.
size_t append_lossy_prefix(std::string& out, std::string_view bytes);

// Returns the printable character by which byte-level tokenizers represent a byte.
char32_t byte_to_char(uint8_t byte);
// Replaces `out` by the bytes that the characters of `text` represent. Returns false if one
// represents none.
bool alphabet_bytes(std::string_view text, std::string& out);
int char_to_byte(char32_t code);  // returns the byte that a character represents; -1: none

}  // namespace moebius::unicode
