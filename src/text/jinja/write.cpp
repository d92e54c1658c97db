// SPDX-License-Identifier: Apache-2.0
// Writes values as text like Python's str(), repr() and json.dumps(). Bytes keep their origin.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "text/jinja/value.h"
#include "text/unicode.h"

namespace moebius::jinja {
namespace {

constexpr size_t kMaxText =
    size_t{1} << 28;  // values may share parts, so their text can be far larger than they are
using Kind = Value::Kind;

bool printable_char(char32_t c) {
  using namespace unicode;
  if (c == ' ') return true;
  const uint32_t hidden =
      bit(kCn) | bit(kCc) | bit(kCf) | bit(kCs) | bit(kCo) | bit(kZl) | bit(kZp) | bit(kZs);
  return (Table::get().mask(c) & hidden) == 0;
}

void write_string_repr(const Str& s, StrBuilder& out) {
  const bool single =
      s.text.find('\'') == std::string::npos || s.text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  out.add(std::string_view(&quote, 1));
  for (size_t i = 0; i < s.text.size();) {
    const auto c = unicode::decode(s.text.data() + i);
    std::string made;
    if (c.code == static_cast<char32_t>(quote) || c.code == '\\')
      made = fmt::format("\\{}", static_cast<char>(c.code));
    else if (c.code == '\n')
      made = "\\n";
    else if (c.code == '\r')
      made = "\\r";
    else if (c.code == '\t')
      made = "\\t";
    else if (!printable_char(c.code))
      made = c.code < 0x100     ? fmt::format("\\x{:02x}", static_cast<uint32_t>(c.code))
             : c.code < 0x10000 ? fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code))
                                : fmt::format("\\U{:08x}", static_cast<uint32_t>(c.code));
    if (made.empty())
      out.add(s, i, i + c.length);
    else
      out.add(made, s.trust.at(i));
    i += c.length;
  }
  out.add(std::string_view(&quote, 1));
}

void write_json_string(const Str& s, bool ascii, StrBuilder& out) {
  out.add("\"");
  for (size_t i = 0; i < s.text.size();) {
    const auto c = unicode::decode(s.text.data() + i);
    std::string made;
    switch (c.code) {
      case '"':
        made = "\\\"";
        break;
      case '\\':
        made = "\\\\";
        break;
      case '\n':
        made = "\\n";
        break;
      case '\r':
        made = "\\r";
        break;
      case '\t':
        made = "\\t";
        break;
      case '\f':
        made = "\\f";
        break;
      case '\b':
        made = "\\b";
        break;
      default:
        if (c.code < 0x20 || (ascii && c.code > 0x7e && c.code < 0x10000))
          made = fmt::format("\\u{:04x}", static_cast<uint32_t>(c.code));
        else if (ascii && c.code >= 0x10000)
          made = fmt::format("\\u{:04x}\\u{:04x}",
                             0xd800 + ((static_cast<uint32_t>(c.code) - 0x10000) >> 10),
                             0xdc00 + (static_cast<uint32_t>(c.code) & 0x3ff));
    }
    if (made.empty())
      out.add(s, i, i + c.length);
    else
      out.add(made, s.trust.at(i));
    i += c.length;
  }
  out.add("\"");
}

std::string json_number(const Value& v) {
  if (!v.is(Kind::kFloat)) return fmt::format("{}", v.integer());
  if (std::isnan(v.number())) return "NaN";
  if (std::isinf(v.number())) return v.number() > 0 ? "Infinity" : "-Infinity";
  return float_repr(v.number());
}

void newline(const JsonStyle& style, int depth, StrBuilder& out) {
  if (!style.has_indent) return;
  out.add("\n");
  for (int i = 0; i < depth; ++i) out.add(style.indent);
}

void write_key(const Value& key, const JsonStyle& style, StrBuilder& out) {
  if (key.is_string()) return write_json_string(key.str(), style.ensure_ascii, out);
  if (key.is(Kind::kBool))
    out.add(key.integer() ? "\"true\"" : "\"false\"");
  else if (key.is_none())
    out.add("\"null\"");
  else if (key.is_number())
    out.add("\"" + json_number(key) + "\"");
  else
    fail("tojson: a key of type '{}'", type_name(key));
}

void write_json_dict(const Dict& dict, const JsonStyle& style, StrBuilder& out, int depth) {
  auto items = dict.items;
  if (style.sort_keys)
    std::stable_sort(items.begin(), items.end(),
                     [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
  out.add("{");
  for (size_t i = 0; i < items.size(); ++i) {
    if (i > 0) out.add(style.item_separator);
    newline(style, depth + 1, out);
    write_key(items[i].first, style, out);
    out.add(style.key_separator);
    write_json(items[i].second, style, out, depth + 1);
  }
  if (!items.empty()) newline(style, depth, out);
  out.add("}");
}

}  // namespace

std::string float_repr(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d > 0 ? "inf" : "-inf";
  char buffer[64];
  const auto end =
      std::to_chars(buffer, buffer + sizeof(buffer), d, std::chars_format::scientific).ptr;
  const std::string_view text(buffer, static_cast<size_t>(end - buffer));
  const size_t e = text.find('e');
  int exponent = 0;
  const std::string_view power = text.substr(e + 1);
  std::from_chars(power.data() + (power[0] == '+' ? 1 : 0), power.data() + power.size(), exponent);
  std::string digits, sign = text[0] == '-' ? "-" : "";
  for (const char c : text.substr(0, e))
    if (c >= '0' && c <= '9') digits += c;
  if (exponent < -4 || exponent >= 16) {
    std::string out = sign + digits.substr(0, 1);
    if (digits.size() > 1) out += "." + digits.substr(1);
    return out + fmt::format("e{}{:02}", exponent < 0 ? '-' : '+', std::abs(exponent));
  }
  if (exponent < 0)
    return sign + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

void write_str(const Value& v, StrBuilder& out) {
  if (v.is_string())
    out.add(v.str());
  else if (!v.is_undefined())
    write_repr(v, out);
}

void write_repr(const Value& v, StrBuilder& out, int depth) {
  if (depth > kMaxNesting) fail("values are nested deeper than {}", kMaxNesting);
  spend();
  switch (v.kind()) {
    case Kind::kUndefined:
      out.add("Undefined");
      break;
    case Kind::kNone:
      out.add("None");
      break;
    case Kind::kBool:
      out.add(v.integer() ? "True" : "False");
      break;
    case Kind::kInt:
      out.add(fmt::format("{}", v.integer()));
      break;
    case Kind::kFloat:
      out.add(float_repr(v.number()));
      break;
    case Kind::kString:
      write_string_repr(v.str(), out);
      break;
    case Kind::kList:
    case Kind::kView:
    case Kind::kTuple: {
      const bool tuple = v.is(Kind::kTuple), view = v.is(Kind::kView);
      const auto& items = v.list().items;
      if (view) out.add(fmt::format("{}(", v.list().view));
      out.add(tuple ? "(" : "[");
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.add(", ");
        write_repr(items[i], out, depth + 1);
      }
      out.add(tuple ? (items.size() == 1 ? ",)" : ")") : "]");
      if (view) out.add(")");
      break;
    }
    case Kind::kDict: {
      out.add("{");
      bool first = true;
      for (const auto& [key, value] : v.dict().items) {
        if (!std::exchange(first, false)) out.add(", ");
        write_repr(key, out, depth + 1);
        out.add(": ");
        write_repr(value, out, depth + 1);
      }
      out.add("}");
      break;
    }
    case Kind::kRange:
      out.add(fmt::format("range({}, {}", v.list().start, v.list().stop));
      out.add(v.list().step == 1 ? ")" : fmt::format(", {})", v.list().step));
      break;
    default:
      fail("a value of type '{}' has no text", type_name(v));
  }
  if (out.size() > kMaxText) fail("the text of a value is too long");
}

void write_json(const Value& v, const JsonStyle& style, StrBuilder& out, int depth) {
  if (depth > kMaxNesting) fail("tojson: values are nested deeper than {}", kMaxNesting);
  spend();
  switch (v.kind()) {
    case Kind::kNone:
      out.add("null");
      break;
    case Kind::kBool:
      out.add(v.integer() ? "true" : "false");
      break;
    case Kind::kInt:
    case Kind::kFloat:
      out.add(json_number(v));
      break;
    case Kind::kString:
      write_json_string(v.str(), style.ensure_ascii, out);
      break;
    case Kind::kList:
    case Kind::kTuple: {
      const auto& items = v.list().items;
      out.add("[");
      for (size_t i = 0; i < items.size(); ++i) {
        if (i > 0) out.add(style.item_separator);
        newline(style, depth + 1, out);
        write_json(items[i], style, out, depth + 1);
      }
      if (!items.empty()) newline(style, depth, out);
      out.add("]");
      break;
    }
    case Kind::kDict:
      write_json_dict(v.dict(), style, out, depth);
      break;
    default:
      fail("tojson: a value of type '{}' cannot be written as JSON", type_name(v));
  }
  if (out.size() > kMaxText) fail("tojson: the text is too long");
}

}  // namespace moebius::jinja
