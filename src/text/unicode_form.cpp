// SPDX-License-Identifier: Apache-2.0
// Computes NFC, NFD, NFKC, NFKD and graphemes through utf8proc, which only this unit includes. Only
// the stretches that can change are decomposed; marks are sorted here, because the library's own
// ordering takes quadratic time on long runs of them.
#include <utf8proc.h>

#include <algorithm>

#include "base/error.h"
#include "text/normalizer.h"
#include "text/unicode.h"

namespace moebius {
namespace {

struct Range {
  char32_t low, high;
};
template <size_t n>
bool contains(const Range (&ranges)[n], char32_t c) {
  const Range* r = std::lower_bound(ranges, ranges + n, c,
                                    [](const Range& range, char32_t x) { return range.high < x; });
  return r != ranges + n && c >= r->low;
}

// Returns whether a mark or compatibility character is from Unicode 10 or later. The library that
// published tokenizers were trained with has the tables of Unicode 9 and leaves such characters
// alone; this code does so, too, to give the same ids.
bool newer_than_tables(char32_t c) {
  static constexpr Range kRanges[] = {
      {0x07fd, 0x07fd},   {0x0898, 0x089f},   {0x08ca, 0x08d3},   {0x09fe, 0x09fe},
      {0x0c3c, 0x0c3c},   {0x0d3b, 0x0d3c},   {0x0eba, 0x0eba},   {0x1715, 0x1715},
      {0x1abf, 0x1ace},   {0x1df6, 0x1dfa},   {0x32ff, 0x32ff},   {0xa7f2, 0xa7f4},
      {0xa82c, 0xa82c},   {0xab69, 0xab69},   {0x10781, 0x10785}, {0x10787, 0x107b0},
      {0x107b2, 0x107ba}, {0x10d24, 0x10d27}, {0x10eab, 0x10eac}, {0x10f46, 0x10f50},
      {0x10f82, 0x10f85}, {0x11070, 0x11070}, {0x1133b, 0x1133b}, {0x1145e, 0x1145e},
      {0x11839, 0x1183a}, {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938},
      {0x1193d, 0x1193e}, {0x11943, 0x11943}, {0x119e0, 0x119e0}, {0x11a34, 0x11a34},
      {0x11a47, 0x11a47}, {0x11a99, 0x11a99}, {0x11d42, 0x11d42}, {0x11d44, 0x11d45},
      {0x11d97, 0x11d97}, {0x16ff0, 0x16ff1}, {0x1e130, 0x1e136}, {0x1e2ae, 0x1e2ae},
      {0x1e2ec, 0x1e2ef}, {0x1f16c, 0x1f16c}, {0x1fbf0, 0x1fbf9}};
  return c >= 0x7fd && contains(kRanges, c);
}

// Returns true only for characters that NFC leaves as they are and that never join the character
// before them.
bool nfc_inert(char32_t c) {
  if (c < 0x300) return true;
  static constexpr Range kRanges[] = {
      {0x0400, 0x0482},   {0x048a, 0x052f},  {0x0531, 0x058f}, {0x05d0, 0x05ea}, {0x0621, 0x064a},
      {0x0904, 0x0928},   {0x0e01, 0x0e30},  {0x10a0, 0x10ff}, {0x1e00, 0x1eff}, {0x2002, 0x2027},
      {0x2030, 0x205e},   {0x20a0, 0x20bf},  {0x2190, 0x2328}, {0x232b, 0x2adb}, {0x2b00, 0x2bff},
      {0x3000, 0x3029},   {0x3030, 0x3098},  {0x309b, 0x30ff}, {0x3105, 0x312f}, {0x3200, 0x4dbf},
      {0x4e00, 0x9fff},   {0xac00, 0xd7a3},  {0xe000, 0xf8ff}, {0xff01, 0xffdc}, {0xfffd, 0xfffd},
      {0x1f000, 0x1faff}, {0x20000, 0x2a6df}};
  return contains(kRanges, c);
}

int combining_class(utf8proc_int32_t c) { return utf8proc_get_property(c)->combining_class; }

// Orders marks canonically: sorts every run of marks stably by class.
void order_marks(std::vector<utf8proc_int32_t>& codes) {
  const auto less = [](utf8proc_int32_t a, utf8proc_int32_t b) {
    return combining_class(a) < combining_class(b);
  };
  for (size_t i = 0; i < codes.size();) {
    if (combining_class(codes[i]) == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < codes.size() && combining_class(codes[end]) != 0) ++end;
    if (end - i > 1)
      std::stable_sort(codes.begin() + static_cast<ptrdiff_t>(i),
                       codes.begin() + static_cast<ptrdiff_t>(end), less);
    i = end;
  }
}

std::string normalize_stretch(std::string_view text, UnicodeForm form) {
  const bool compat = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  const bool compose = form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc;
  const auto options = static_cast<utf8proc_option_t>(
      UTF8PROC_STABLE | (compose ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE) |
      (compat ? UTF8PROC_COMPAT : 0));
  std::vector<utf8proc_int32_t> codes;
  codes.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size();) {
    const auto c = unicode::decode(text.data() + i);
    i += c.length;
    utf8proc_int32_t parts[32];
    int boundary = 0;
    const auto n = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(c.code), parts, 32,
                                           options, &boundary);
    if (n < 0 || n > 32)
      fail("text cannot be normalized at U+{:04X}", static_cast<uint32_t>(c.code));
    codes.insert(codes.end(), parts, parts + n);
  }
  order_marks(codes);
  if (compose) {
    const auto n = utf8proc_normalize_utf32(codes.data(),
                                            static_cast<utf8proc_ssize_t>(codes.size()), options);
    if (n < 0) fail("text cannot be normalized: {}", utf8proc_errmsg(n));
    codes.resize(static_cast<size_t>(n));
  }
  std::string out;
  out.reserve(text.size());
  for (const auto c : codes) unicode::append(out, static_cast<char32_t>(c));
  return out;
}

// Finds the next stretch at or after `from` that may change: it starts at the character before the
// first one that is not inert (a base may join its marks) and ends before the next inert character.
bool next_stretch(std::string_view text, size_t from, UnicodeForm form, size_t& begin,
                  size_t& end) {
  const auto inert = [&](char32_t c) {
    return (form == UnicodeForm::kNfc ? nfc_inert(c) : c < 0x80) || newer_than_tables(c);
  };
  size_t i = from, last = from;
  while (i < text.size()) {
    const auto c = unicode::decode(text.data() + i);
    if (!inert(c.code)) break;
    last = newer_than_tables(c.code) ? i + c.length : i;
    i += c.length;
  }
  if (i >= text.size()) return false;
  begin = last;
  while (i < text.size()) {
    const auto c = unicode::decode(text.data() + i);
    if (inert(c.code)) break;
    i += c.length;
  }
  end = i;
  return true;
}

}  // namespace

char32_t simple_uppercase(char32_t code) {
  return static_cast<char32_t>(utf8proc_toupper(static_cast<utf8proc_int32_t>(code)));
}
char32_t simple_lowercase(char32_t code) {
  return static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code)));
}

void to_unicode_form(NormalizedText& value, UnicodeForm form) {
  size_t begin = 0, end = 0;
  if (!next_stretch(value.text, 0, form, begin, end)) return;
  NormalizedText out;
  out.from_start = value.from_start;
  out.text.reserve(value.text.size());
  const bool flags = !value.trusted.empty();
  size_t done = 0;
  do {
    out.text.append(value.text, done, begin - done);
    const std::string made =
        normalize_stretch(std::string_view(value.text).substr(begin, end - begin), form);
    out.text += made;
    if (flags) {
      out.trusted.append(value.trusted, done, begin - done);
      const bool trusted = value.trusted.find('\0', begin) >= end;
      out.trusted.append(made.size(), trusted ? '\1' : '\0');
    }
    done = end;
  } while (next_stretch(value.text, done, form, begin, end));
  out.text.append(value.text, done);
  if (flags) out.trusted.append(value.trusted, done);
  value = std::move(out);
}

size_t grapheme_bytes(std::string_view text) {
  utf8proc_int32_t state = 0;
  auto left = unicode::decode(text.data());
  size_t end = left.length;
  while (end < text.size()) {
    const auto right = unicode::decode(text.data() + end);
    if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(left.code),
                                         static_cast<utf8proc_int32_t>(right.code), &state))
      break;
    end += right.length;
    left = right;
  }
  return end;
}

}  // namespace moebius
