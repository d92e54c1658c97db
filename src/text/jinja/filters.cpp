// SPDX-License-Identifier: Apache-2.0
// Implements the filters. Filters that Jinja evaluates lazily return generators, which are always
// true, have no length and can be read once.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>

#include "base/error.h"
#include "text/jinja/names.h"
#include "text/unicode.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

void check_defined(const Value& v, std::string_view filter) {
  if (v.is_undefined()) fail("{}: the value is undefined", filter);
}
bool absent(const Value& v) { return v.is_undefined() && v.undefined_name() == nullptr; }

int64_t integer_argument(const Value& v, int64_t otherwise, std::string_view what) {
  if (absent(v)) return otherwise;
  if (!v.is_integer()) fail("{} must be an integer, not '{}'", what, type_name(v));
  return v.integer();
}

// Follows a path like a.b.0 of attributes and items.
Value deep_attribute(const Call& c, Value v, const Value& path) {
  if (path.is_integer()) return c.runtime.item(v, path);
  const std::string& text = c.text(path).text;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number =
        !part.empty() && parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    v = c.runtime.item(v, number ? Value(index) : c.heap().string(part));
    begin = end + 1;
  }
  return v;
}

// Returns the attribute that a filter's argument names, or the value if there is no argument.
Value chosen(const Call& c, const Value& v, const Value& path) {
  return absent(path) || path.is_none() ? v : deep_attribute(c, v, path);
}

// Returns the key by which a value sorts: strings compare without case unless asked otherwise.
Value sort_key(const Call& c, const Value& v, bool case_sensitive) {
  return v.is_string() && !case_sensitive ? c.heap().string(changed_case(v.str(), false)) : v;
}

// Returns the text of a number without white space around it; the text must not be empty to be one.
std::string number_text(const Str& s) {
  spend_bytes(s.text.size());
  std::string text = s.text;
  text.erase(0, text.find_first_not_of(" \t\r\n"));
  text.erase(text.find_last_not_of(" \t\r\n") + 1);
  return text;
}

std::vector<Value> sorted(std::vector<Value> items, const std::function<Value(const Value&)>& key,
                          bool reverse) {
  std::vector<std::pair<Value, Value>> keyed;
  keyed.reserve(items.size());
  for (const Value& v : items) keyed.emplace_back(key(v), v);
  const auto less = [&](const auto& a, const auto& b) {
    return reverse ? compare(b.first, a.first) < 0 : compare(a.first, b.first) < 0;
  };
  std::stable_sort(keyed.begin(), keyed.end(), less);
  for (size_t i = 0; i < items.size(); ++i) items[i] = keyed[i].second;
  return items;
}

Value filter_end(const Call& c) {
  static const std::string kEmpty = "an empty sequence";
  const bool last = c.name == "last";
  if (last && c.self.is(Kind::kGenerator)) fail("last: a generator cannot be reversed");
  const std::vector<Value> items = c.elements();
  return items.empty() ? Value::undefined(&kEmpty) : last ? items.back() : items.front();
}

Value filter_tojson(const Call& c) {
  JsonStyle style;
  style.ensure_ascii = truth(c.args[0]);
  style.sort_keys = truth(c.args[3]);
  if (!absent(c.args[1]) && !c.args[1].is_none()) {
    style.has_indent = true;
    style.item_separator.assign(1, ',');
    if (c.args[1].is_string())
      style.indent = c.args[1].str().text;
    else
      style.indent.assign(static_cast<size_t>(std::clamp<int64_t>(
                              integer_argument(c.args[1], 0, "indent"), 0, 1024)),
                          ' ');
  }
  if (c.args[2].is_sequence() && c.args[2].list().items.size() == 2) {
    style.item_separator = c.text(c.args[2].list().items[0]).text;
    style.key_separator = c.text(c.args[2].list().items[1]).text;
  }
  StrBuilder out;
  write_json(c.self, style, out);
  return c.heap().string(out.take());
}

Value filter_length(const Call& c) {
  bind_arguments("length", c.given, "");
  if (c.self.is_undefined()) return Value(int64_t{0});
  if (c.self.is_string()) {
    spend_bytes(c.str().text.size());
    return Value(static_cast<int64_t>(count_chars(c.str().text)));
  }
  if (c.self.has_items()) return Value(static_cast<int64_t>(c.self.list().items.size()));
  if (c.self.is(Kind::kDict)) return Value(static_cast<int64_t>(c.self.dict().items.size()));
  fail("object of type '{}' has no len()", type_name(c.self));
}

Value filter_join(const Call& c) {
  StrBuilder out;
  bool first = true;
  for (const Value& v : c.elements()) {
    if (!std::exchange(first, false) && !absent(c.args[0])) write_str(c.args[0], out);
    write_str(chosen(c, v, c.args[1]), out);
    if (out.size() > (size_t{1} << 28)) fail("the result of join is too long");
  }
  return c.heap().string(out.take());
}

Value filter_default(const Call& c) {
  const auto a = bind_arguments("default", c.given, "default_value boolean");
  const bool use = c.self.is_undefined() || (truth(a[1]) && !truth(c.self));
  if (!use) return c.self;
  return absent(a[0]) ? c.heap().string("") : a[0];
}

Value filter_items(const Call& c) {
  if (c.self.is_undefined()) return c.heap().list({}, Kind::kGenerator);
  if (!c.self.is(Kind::kDict)) fail("items: '{}' is not a mapping", type_name(c.self));
  std::vector<Value> out;
  for (const auto& [k, v] : c.self.dict().items) out.push_back(c.heap().list({k, v}, Kind::kTuple));
  return c.heap().list(std::move(out), Kind::kGenerator);
}

Value filter_dictsort(const Call& c) {
  if (!c.self.is(Kind::kDict)) fail("dictsort: '{}' is not a mapping", type_name(c.self));
  const std::string by = absent(c.args[1]) ? "key" : c.text(c.args[1]).text;
  if (by != "key" && by != "value")
    fail("dictsort: by is '{}'; expected key or value", printable(by, 40));
  std::vector<Value> pairs;
  for (const auto& [k, v] : c.self.dict().items)
    pairs.push_back(c.heap().list({k, v}, Kind::kTuple));
  const bool sensitive = truth(c.args[0]);
  const size_t which = by == "key" ? 0 : 1;
  return c.heap().list(sorted(
      std::move(pairs),
      [&](const Value& v) { return sort_key(c, v.list().items[which], sensitive); },
      truth(c.args[2])));
}

Value filter_sort(const Call& c) {
  const auto key = [&](const Value& v) {
    return sort_key(c, chosen(c, v, c.args[2]), truth(c.args[1]));
  };
  return c.heap().list(sorted(c.elements(), key, truth(c.args[0])));
}

Value filter_unique(const Call& c) {
  std::vector<Value> out, keys;
  for (const Value& v : c.elements()) {
    const Value key = sort_key(c, chosen(c, v, c.args[1]), truth(c.args[0]));
    check_hashable(key);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key); }))
      continue;
    keys.push_back(key);
    out.push_back(v);
  }
  return c.heap().list(std::move(out), Kind::kGenerator);
}

Value filter_map(const Call& c) {
  std::vector<Value> out;
  const auto named = [&](std::string_view key) -> const Value* {
    for (const auto& [own, value] : c.given.named)
      if (own == key) return &value;
    return nullptr;
  };
  if (const Value* path = c.given.positional.empty() ? named("attribute") : nullptr) {
    const Value* otherwise = named("default");
    for (const Value& v : c.elements()) {
      const Value found = deep_attribute(c, v, *path);
      out.push_back(found.is_undefined() && otherwise ? *otherwise : found);
    }
    return c.heap().list(std::move(out), Kind::kGenerator);
  }
  if (c.given.positional.empty()) fail("map needs the name of a filter or attribute=");
  const std::string name = c.text(c.given.positional[0]).text;
  const Arguments rest{{c.given.positional.begin() + 1, c.given.positional.end()}, c.given.named};
  for (const Value& v : c.elements()) out.push_back(c.runtime.filter(name, v, rest));
  return c.heap().list(std::move(out), Kind::kGenerator);
}

// Implements select, reject, selectattr and rejectattr.
Value filter_choose(const Call& c) {
  const bool by_attribute = c.name.ends_with("attr"), keep = c.name.starts_with("select");
  size_t used = 0;
  Value path;
  if (by_attribute) {
    if (c.given.positional.empty()) fail("{} needs the name of an attribute", c.name);
    path = c.given.positional[used++];
  }
  const std::string test =
      c.given.positional.size() > used ? c.text(c.given.positional[used++]).text : std::string();
  const Arguments rest{
      {c.given.positional.begin() + static_cast<ptrdiff_t>(used), c.given.positional.end()},
      c.given.named};
  std::vector<Value> out;
  for (const Value& v : c.elements()) {
    const Value subject = by_attribute ? deep_attribute(c, v, path) : v;
    const bool yes = test.empty() ? truth(subject) : c.runtime.test(test, subject, rest);
    if (yes == keep) out.push_back(v);
  }
  return c.heap().list(std::move(out), Kind::kGenerator);
}

Value filter_indent(const Call& c) {
  if (!c.self.is_string()) fail("indent: '{}' is not a string", type_name(c.self));
  const Str& s = c.self.str();
  const Value spaces =
      c.args[0].is_string()
          ? c.args[0]
          : c.heap().string(std::string(static_cast<size_t>(std::clamp<int64_t>(
                                            integer_argument(c.args[0], 4, "width"), 0, 4096)),
                                        ' '));
  StrBuilder whole;
  whole.add(s);
  whole.add("\n");
  const Value lines = c.runtime.call_method(c.heap().string(whole.take()), "splitlines", {});
  StrBuilder out;
  bool first = true;
  for (const Value& line : lines.list().items) {
    if (!first) out.add("\n");
    const bool indents = first ? truth(c.args[1]) : truth(c.args[2]) || !line.str().text.empty();
    if (indents) out.add(spaces.str());
    out.add(line.str());
    first = false;
    if (out.size() > (size_t{1} << 28)) fail("the result of indent is too long");
  }
  return c.heap().string(out.take());
}

Value filter_title(const Call& c) {
  const Str& s = c.text(c.self);
  StrBuilder out;
  bool start = true;
  for (size_t i = 0; i < s.text.size();) {
    const auto ch = unicode::decode(s.text.data() + i);
    const bool separator =
        python_space(ch.code) ||
        std::string_view("-({[<").find(static_cast<char>(ch.code < 128 ? ch.code : 'x')) !=
            std::string_view::npos;
    out.add(changed_case(substr(s, i, i + ch.length), !separator && start));
    start = separator;
    i += ch.length;
  }
  return c.heap().string(out.take());
}

Value filter_int(const Call& c) {
  check_defined(c.self, "int");
  const Value otherwise = absent(c.args[0]) ? Value(int64_t{0}) : c.args[0];
  if (c.self.is_integer()) return Value(c.self.integer());
  double d = std::nan("");
  if (c.self.is(Kind::kFloat)) d = c.self.number();
  if (c.self.is_string()) {
    const std::string text = number_text(c.self.str());
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const char* end = text.data() + text.size();
    int64_t i = 0;
    const auto parsed = std::from_chars(
        begin, end, i,
        static_cast<int>(std::clamp<int64_t>(integer_argument(c.args[1], 10, "base"), 2, 36)));
    if (parsed.ec == std::errc() && parsed.ptr == end && begin != end) return Value(i);
    const auto number = std::from_chars(begin, end, d);
    if (number.ec != std::errc() || number.ptr != end) d = std::nan("");
  }
  return std::isfinite(d) && std::abs(d) < 9e18 ? Value(static_cast<int64_t>(d)) : otherwise;
}

Value filter_float(const Call& c) {
  check_defined(c.self, "float");
  if (c.self.is_number()) return Value(c.self.number());
  if (c.self.is_string()) {
    const std::string text = number_text(c.self.str());
    double d = 0;
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const auto parsed = std::from_chars(begin, text.data() + text.size(), d);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && !text.empty())
      return Value(d);
  }
  return absent(c.args[0]) ? Value(0.0) : c.args[0];
}

Value filter_round(const Call& c) {
  const int64_t precision =
      std::clamp<int64_t>(integer_argument(c.args[0], 0, "precision"), -30, 30);
  const std::string method = absent(c.args[1]) ? "common" : c.text(c.args[1]).text;
  if (!c.self.is_number()) fail("round: '{}' is not a number", type_name(c.self));
  if (method == "common") {
    if (precision < 0) fail("round: negative precision is not supported");
    if (c.self.is_integer()) return Value(c.self.integer());
    const std::string text =
        fmt::format("{:.{}f}", c.self.number(), precision);  // rounds the exact value, ties to even
    double d = 0;
    std::from_chars(text.data(), text.data() + text.size(), d);
    return Value(d);
  }
  if (method != "ceil" && method != "floor")
    fail("round: method is '{}'; expected common, ceil or floor", printable(method, 40));
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value((method == "ceil" ? std::ceil(c.self.number() * scale)
                                 : std::floor(c.self.number() * scale)) /
               scale);
}

Value filter_sum(const Call& c) {
  Value total = absent(c.args[1]) ? Value(int64_t{0}) : c.args[1];
  for (const Value& v : c.elements()) total = arithmetic("+", total, chosen(c, v, c.args[0]));
  return total;
}

Value filter_reverse(const Call& c) {
  std::vector<Value> items = c.elements();
  std::reverse(items.begin(), items.end());
  if (!c.self.is_string()) return c.heap().list(std::move(items), Kind::kGenerator);
  StrBuilder out;
  for (const Value& v : items) out.add(v.str());
  return c.heap().string(out.take());
}

Value filter_replace(const Call& c) {
  Arguments texts = c.given;
  for (size_t i = 0; i < texts.positional.size() && i < 2; ++i)
    texts.positional[i] = c.runtime.to_str(texts.positional[i]);
  return c.runtime.call_method(c.string(), c.name, texts);
}

Value filter_abs(const Call& c) {
  const bool negative = c.self.is_number() && compare(c.self, Value(int64_t{0})) < 0;
  return arithmetic(negative ? "-" : "+", Value(int64_t{0}), c.self);
}

// Rows of names that share a function, separated by spaces.
constexpr NamedBuiltin kFilters[] = {
    {Named::kFilter, "abs", filter_abs},
    {Named::kFilter, "capitalize lower upper",
     [](const Call& c) { return c.runtime.call_method(c.string(), c.name, c.given); }},
    {Named::kFilter, "count length", filter_length},
    {Named::kFilter, "d default", filter_default},
    {Named::kFilter, "dictsort", filter_dictsort, "case_sensitive by reverse"},
    {Named::kFilter, "first last", filter_end},
    {Named::kFilter, "float", filter_float, "default"},
    {Named::kFilter, "format",
     [](const Call& c) { return percent_format(c.runtime, c.text(c.self), c.given.positional); }},
    {Named::kFilter, "indent", filter_indent, "width first blank"},
    {Named::kFilter, "int", filter_int, "default base"},
    {Named::kFilter, "items", filter_items, ""},
    {Named::kFilter, "join", filter_join, "d attribute"},
    {Named::kFilter, "list", [](const Call& c) { return c.heap().list(c.elements()); }},
    {Named::kFilter, "map", filter_map},
    {Named::kFilter, "reject rejectattr select selectattr", filter_choose},
    {Named::kFilter, "replace", filter_replace},
    {Named::kFilter, "reverse", filter_reverse, ""},
    {Named::kFilter, "round", filter_round, "precision method"},
    {Named::kFilter, "safe string", [](const Call& c) { return c.string(); }},
    {Named::kFilter, "sort", filter_sort, "reverse case_sensitive attribute"},
    {Named::kFilter, "sum", filter_sum, "attribute start"},
    {Named::kFilter, "title", filter_title, ""},
    {Named::kFilter, "tojson", filter_tojson, "ensure_ascii indent separators sort_keys"},
    {Named::kFilter, "trim",
     [](const Call& c) { return c.runtime.call_method(c.string(), "strip", c.given); }},
    {Named::kFilter, "unique", filter_unique, "case_sensitive attribute"},
};

}  // namespace

std::span<const NamedBuiltin> filter_names() { return kFilters; }

}  // namespace moebius::jinja
