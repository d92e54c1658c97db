// SPDX-License-Identifier: Apache-2.0
// Holds the class table, decodes with replacement characters, and maps the byte alphabet.
#include "text/unicode.h"

#include <cstring>
#include <memory>

#include "base/utf8.h"
#include "text/oniguruma.h"

namespace moebius::unicode {
namespace {

struct ByteAlphabet {
  std::array<char32_t, 256> to_char{};
  std::array<int16_t, 512> to_byte{};
  ByteAlphabet() {
    to_byte.fill(-1);
    char32_t next = 0x100;
    for (unsigned b = 0; b < 256; ++b) {
      const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
      to_char[b] = printable ? b : next++;
      to_byte[to_char[b]] = static_cast<int16_t>(b);
    }
  }
};

const ByteAlphabet& alphabet() {
  static const ByteAlphabet a;
  return a;
}

// Describes an invalid sequence at the start of a text: how many bytes one replacement character
// stands for, and whether only the end of the text cut it off.
struct Broken {
  size_t length;
  bool cut;
};
Broken broken_sequence(std::string_view rest) {
  const auto at = [&](size_t i) { return static_cast<unsigned char>(rest[i]); };
  const unsigned a = at(0);
  size_t need = 0;
  if (a >= 0xc2 && a <= 0xdf) need = 2;
  if (a >= 0xe0 && a <= 0xef) need = 3;
  if (a >= 0xf0 && a <= 0xf4) need = 4;
  if (need == 0) return {1, false};
  if (rest.size() == 1) return {1, true};
  const unsigned b = at(1);
  const unsigned low = a == 0xe0 ? 0xa0u : a == 0xf0 ? 0x90u : 0x80u;
  const unsigned high = a == 0xed ? 0x9fu : a == 0xf4 ? 0x8fu : 0xbfu;
  if (b < low || b > high) return {1, false};
  size_t n = 2;
  while (n < need && n < rest.size() && (at(n) & 0xc0u) == 0x80u) ++n;
  return {n, n == rest.size() && n < need};
}

}  // namespace

Table::Table() {
  std::memset(classes_, 0, sizeof(classes_));
  const auto add = [&](std::string_view name, size_t bits) {
    for (const auto& [low, high] : unicode_property_ranges(name))
      for (uint32_t c = low; c <= high && c < 0x110000; ++c)
        classes_[c] = static_cast<uint8_t>(classes_[c] | bits);
  };
  for (size_t i = 2; i < kCategories.size(); i += 2) add(kCategories.substr(i, 2), i / 2);
  add("Space", 32);
  add("Alphabetic", 64);
  for (const char* name : {"Mn", "Mc", "Me", "Nd", "Pc"}) add(name, 64);
  for (const uint32_t joiner : {0x200cu, 0x200du}) classes_[joiner] |= 64;
  for (unsigned i = 0; i < 128; ++i)
    masks_[i] = (uint32_t{1} << (i & 31)) | ((i & 32) ? kSpace : 0);
}

const Table& Table::get() {
  static const std::unique_ptr<const Table> table(new Table);
  return *table;
}

void append(std::string& out, char32_t c) {
  if (c < 0x80) {
    out += static_cast<char>(c);
  } else if (c < 0x800) {
    out += static_cast<char>(0xc0 | (c >> 6));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else if (c < 0x10000) {
    out += static_cast<char>(0xe0 | (c >> 12));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  } else {
    out += static_cast<char>(0xf0 | (c >> 18));
    out += static_cast<char>(0x80 | ((c >> 12) & 0x3f));
    out += static_cast<char>(0x80 | ((c >> 6) & 0x3f));
    out += static_cast<char>(0x80 | (c & 0x3f));
  }
}

size_t append_lossy_prefix(std::string& out, std::string_view bytes) {
  size_t i = 0;
  while (i < bytes.size()) {
    if (const size_t n = utf8_length(bytes.substr(i)); n > 0) {
      out.append(bytes.substr(i, n));
      i += n;
      continue;
    }
    const Broken broken = broken_sequence(bytes.substr(i));
    if (broken.cut) return bytes.size() - i;
    out += "\xef\xbf\xbd";
    i += broken.length;
  }
  return 0;
}

std::string lossy(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  if (append_lossy_prefix(out, bytes) > 0) out += "\xef\xbf\xbd";
  return out;
}

char32_t byte_to_char(uint8_t byte) { return alphabet().to_char[byte]; }
bool alphabet_bytes(std::string_view text, std::string& out) {
  out.clear();
  for (size_t i = 0; i < text.size();) {
    const auto c = decode(text.data() + i);
    const int byte = char_to_byte(c.code);
    if (byte < 0) return false;
    out += static_cast<char>(byte);
    i += c.length;
  }
  return true;
}
int char_to_byte(char32_t code) { return code < 512 ? alphabet().to_byte[code] : -1; }

}  // namespace moebius::unicode
