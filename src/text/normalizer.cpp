// SPDX-License-Identifier: Apache-2.0
// Implements the normalizers. Unicode forms are in unicode_form.cpp.
#include "text/normalizer.h"

#include "base/utf8.h"
#include "text/json_fields.h"
#include "text/pattern.h"
#include "text/piece_model.h"
#include "text/unicode.h"

namespace moebius {

char32_t simple_lowercase(char32_t code);  // defined in unicode_form.cpp

namespace {

using unicode::Table;

void prepend(NormalizedText& v, const std::string& text) {
  if (v.text.empty()) return;
  v.text.insert(0, text);
  if (!v.trusted.empty()) v.trusted.insert(0, text.size(), v.trusted[0]);
}

void strip(NormalizedText& v, bool left, bool right) {
  const Table& table = Table::get();
  size_t begin = 0, end = v.text.size();
  while (left && begin < end) {
    const auto c = unicode::decode(v.text.data() + begin);
    if (!table.is_space(c.code)) break;
    begin += c.length;
  }
  while (right && end > begin) {
    const auto c = unicode::decode_before(v.text, end);
    if (!table.is_space(c.code)) break;
    end -= c.length;
  }
  v.from_start = v.from_start && begin == 0;
  v.text = v.text.substr(begin, end - begin);
  if (!v.trusted.empty()) v.trusted = v.trusted.substr(begin, end - begin);
}

void replace(NormalizedText& v, const Pattern& pattern, const std::string& content) {
  Matches matches(pattern, v.text);
  size_t done = 0, begin = 0, end = 0;
  if (!matches.next(begin, end)) return;
  v.from_start = v.from_start && (begin > 0 || !content.empty());
  NormalizedWriter out(v);
  do {
    out.copy(done, begin);
    out.replace(begin, end, content);
    done = end;
  } while (matches.next(begin, end));
  out.copy(done, v.text.size());
  v = out.take();
}

// Rebuilds the text from its characters: write(out, begin, end, code) writes what takes the place
// of each.
template <class Write>
void rewrite_characters(NormalizedText& v, const Write& write) {
  NormalizedWriter out(v);
  for (size_t i = 0; i < v.text.size();) {
    const auto c = unicode::decode(v.text.data() + i);
    write(out, i, i + c.length, c.code);
    i += c.length;
  }
  v = out.take();
}

void lowercase(NormalizedText& v) {
  std::string made;
  rewrite_characters(v, [&](NormalizedWriter& out, size_t begin, size_t end, char32_t code) {
    made.clear();
    unicode::append(made, simple_lowercase(code));
    if (code == 0x130) made = "i\xcc\x87";  // the only character whose lower case is two
    out.replace(begin, end, made);
  });
}

void strip_accents(NormalizedText& v) {
  const auto mark = [](char32_t code) { return (Table::get().mask(code) & unicode::kM) != 0; };
  v.from_start = v.from_start && (v.text.empty() || !mark(unicode::decode(v.text.data()).code));
  rewrite_characters(v, [&](NormalizedWriter& out, size_t begin, size_t end, char32_t code) {
    if (!mark(code)) out.copy(begin, end);
  });
}

void bytes_to_stand_ins(NormalizedText& v) {
  rewrite_characters(v, [&](NormalizedWriter& out, size_t begin, size_t end, char32_t) {
    out.replace(begin, end, stand_ins(std::string_view(v.text).substr(begin, end - begin)));
  });
}

Normalizer parse_one(const Json& json, const std::string& where, int depth) {
  if (depth > 16) fail("{}: sequences nested deeper than 16", where);
  const std::string& type = string_field(json, "type", where);
  static constexpr std::pair<std::string_view, UnicodeForm> kForms[] = {
      {"NFC", UnicodeForm::kNfc},
      {"NFD", UnicodeForm::kNfd},
      {"NFKC", UnicodeForm::kNfkc},
      {"NFKD", UnicodeForm::kNfkd}};
  for (const auto& [name, form] : kForms)
    if (type == name) return [form = form](NormalizedText& v) { to_unicode_form(v, form); };
  if (type == "Lowercase") return lowercase;
  if (type == "StripAccents") return strip_accents;
  if (type == "ByteLevel") return bytes_to_stand_ins;
  if (type == "Precompiled") return parse_precompiled(json, where);
  if (type == "Prepend")
    return [text = string_field(json, "prepend", where)](NormalizedText& v) { prepend(v, text); };
  if (type == "Replace") {
    // One field per statement: the error names the first wrong field.
    const PatternPtr pattern =
        parse_pattern(require_field(json, "pattern", where), where + ".pattern");
    const std::string& content = string_field(json, "content", where);
    return [pattern, content](NormalizedText& v) { replace(v, *pattern, content); };
  }
  if (type == "Strip") {
    const bool left = bool_field(json, "strip_left", /*absent=*/true, where),
               right = bool_field(json, "strip_right", /*absent=*/true, where);
    return [left, right](NormalizedText& v) { strip(v, left, right); };
  }
  if (type == "Sequence") {
    std::vector<Normalizer> parts;
    for_each_item(json, "normalizers", where, [&](const Json& item, const std::string& here) {
      parts.push_back(parse_one(item, here, depth + 1));
    });
    return [parts](NormalizedText& v) {
      for (const Normalizer& part : parts) part(v);
    };
  }
  fail(
      "{}: normalizer type '{}' is not supported (known: NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
      "StripAccents, Prepend, Precompiled, Replace, ByteLevel, Sequence)",
      where, printable(type));
}

}  // namespace

Normalizer parse_normalizer(const Json* json, const std::string& where) {
  return json == nullptr || json->is_null() ? nullptr : parse_one(*json, where, 0);
}

}  // namespace moebius
