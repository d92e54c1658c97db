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
  constexpr uint32_t kHidden = unicode::mask_of("C Z");
  return c == ' ' || (unicode::Table::get().mask(c) & kHidden) == 0;
}

// Writes a text between quotes, with `escape` of each character in its place; an empty one means
// the character itself.
template <class Escape>
void write_quoted(const Str& s, char quote, StrBuilder& out, const Escape& escape) {
  out.add(std::string_view(&quote, 1));
  for (size_t i = 0; i < s.text.size();) {
    const auto c = unicode::decode(s.text.data() + i);
    if (const std::string made = escape(c.code); made.empty())
      out.add(s, i, i + c.length);
    else
      out.add(made, s.trust.at(i));
    i += c.length;
  }
  out.add(std::string_view(&quote, 1));
}

// Returns the escape of a character that Python's and JSON's strings name with a letter of `names`,
// or which ends the string; empty for others.
std::string named_escape(char32_t code, char quote, std::string_view names) {
  static constexpr std::string_view kBytes = "\n\r\t\f\b";
  const char c = code < 0x80 ? static_cast<char>(code) : '\0';
  if (code != 0 && (c == quote || c == '\\')) return {'\\', c};
  const size_t at = code == 0 ? kBytes.npos : kBytes.find(c);
  return at < names.size() ? std::string{'\\', names[at]} : std::string();
}

void write_string_repr(const Str& s, StrBuilder& out) {
  const bool single =
      s.text.find('\'') == std::string::npos || s.text.find('"') != std::string::npos;
  const char quote = single ? '\'' : '"';
  write_quoted(s, quote, out, [&](char32_t code) {
    std::string made = named_escape(code, quote, "nrt");
    const auto number = static_cast<uint32_t>(code);
    if (!made.empty() || printable_char(code)) return made;
    return number < 0x100     ? fmt::format("\\x{:02x}", number)
           : number < 0x10000 ? fmt::format("\\u{:04x}", number)
                              : fmt::format("\\U{:08x}", number);
  });
}

void write_json_string(const Str& s, bool ascii, StrBuilder& out) {
  write_quoted(s, '"', out, [&](char32_t code) {
    std::string made = named_escape(code, '"', "nrtfb");
    const auto number = static_cast<uint32_t>(code);
    if (!made.empty() || (number >= 0x20 && (!ascii || number <= 0x7e))) return made;
    if (number < 0x10000) return fmt::format("\\u{:04x}", number);
    return fmt::format("\\u{:04x}\\u{:04x}", 0xd800 + ((number - 0x10000) >> 10),
                       0xdc00 + (number & 0x3ff));
  });
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

// Writes items of JSON between brackets; `one` writes an item.
template <class Items, class One>
void write_json_items(const Items& items, std::string_view brackets, const JsonStyle& style,
                      StrBuilder& out, int depth, const One& one) {
  out.add(brackets.substr(0, 1));
  bool first = true;
  for (const auto& item : items) {
    if (!std::exchange(first, false)) out.add(style.item_separator);
    newline(style, depth + 1, out);
    one(item);
  }
  if (!first) newline(style, depth, out);
  out.add(brackets.substr(1));
}

void write_json_dict(const Dict& dict, const JsonStyle& style, StrBuilder& out, int depth) {
  auto items = dict.items;
  if (style.sort_keys)
    std::stable_sort(items.begin(), items.end(),
                     [](const auto& a, const auto& b) { return compare(a.first, b.first) < 0; });
  write_json_items(items, "{}", style, out, depth, [&](const auto& item) {
    write_key(item.first, style, out);
    out.add(style.key_separator);
    write_json(item.second, style, out, depth + 1);
  });
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
    case Kind::kTuple:
      write_json_items(v.list().items, "[]", style, out, depth,
                       [&](const Value& item) { write_json(item, style, out, depth + 1); });
      break;
    case Kind::kDict:
      write_json_dict(v.dict(), style, out, depth);
      break;
    default:
      fail("tojson: a value of type '{}' cannot be written as JSON", type_name(v));
  }
  if (out.size() > kMaxText) fail("tojson: the text is too long");
}

}  // namespace moebius::jinja
