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

const Str& text_of(Runtime& r, const Value& v) { return r.to_str(v).str(); }
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
Value deep_attribute(Runtime& r, Value v, const Value& path) {
  if (path.is_integer()) return r.item(v, path);
  const std::string& text = text_of(r, path).text;
  size_t begin = 0;
  while (begin <= text.size()) {
    const size_t end = std::min(text.find('.', begin), text.size());
    const std::string_view part = std::string_view(text).substr(begin, end - begin);
    int64_t index = 0;
    const auto parsed = std::from_chars(part.data(), part.data() + part.size(), index);
    const bool number =
        !part.empty() && parsed.ec == std::errc() && parsed.ptr == part.data() + part.size();
    v = r.item(v, number ? Value(index) : r.heap().string(part));
    begin = end + 1;
  }
  return v;
}

// Returns the attribute that a filter's argument names, or the value if there is no argument.
Value chosen(Runtime& r, const Value& v, const Value& path) {
  return absent(path) || path.is_none() ? v : deep_attribute(r, v, path);
}

// Returns the key by which a value sorts: strings compare without case unless asked otherwise.
Value sort_key(Runtime& r, const Value& v, bool case_sensitive) {
  return v.is_string() && !case_sensitive ? r.heap().string(changed_case(v.str(), false)) : v;
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

Value end_of(Runtime& r, const Value& in, bool last) {
  static const std::string kEmpty = "an empty sequence";
  if (last && in.is(Kind::kGenerator)) fail("last: a generator cannot be reversed");
  const std::vector<Value> items = r.elements(in);
  return items.empty() ? Value::undefined(&kEmpty) : last ? items.back() : items.front();
}

}  // namespace

Value filter_tojson(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = truth(a[0]);
  style.sort_keys = truth(a[3]);
  if (!absent(a[1]) && !a[1].is_none()) {
    style.has_indent = true;
    style.item_separator.assign(1, ',');
    if (a[1].is_string())
      style.indent = a[1].str().text;
    else
      style.indent.assign(
          static_cast<size_t>(std::clamp<int64_t>(integer_argument(a[1], 0, "indent"), 0, 1024)),
          ' ');
  }
  if (a[2].is_sequence() && a[2].list().items.size() == 2) {
    style.item_separator = text_of(r, a[2].list().items[0]).text;
    style.key_separator = text_of(r, a[2].list().items[1]).text;
  }
  StrBuilder out;
  write_json(in, style, out);
  return r.heap().string(out.take());
}

Value filter_length(Runtime&, const Value& in, const std::string&, const Arguments& args) {
  bind("length", args, {});
  switch (in.kind()) {
    case Kind::kUndefined:
      return Value(int64_t{0});
    case Kind::kString:
      spend_bytes(in.str().text.size());
      return Value(static_cast<int64_t>(count_chars(in.str().text)));
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange:
    case Kind::kView:
      return Value(static_cast<int64_t>(in.list().items.size()));
    case Kind::kDict:
      return Value(static_cast<int64_t>(in.dict().items.size()));
    default:
      fail("object of type '{}' has no len()", type_name(in));
  }
}

Value filter_join(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("join", args, {"d", "attribute"});
  StrBuilder out;
  bool first = true;
  for (const Value& v : r.elements(in)) {
    if (!std::exchange(first, false) && !absent(a[0])) write_str(a[0], out);
    write_str(chosen(r, v, a[1]), out);
    if (out.size() > (size_t{1} << 28)) fail("the result of join is too long");
  }
  return r.heap().string(out.take());
}

Value filter_default(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("default", args, {"default_value", "boolean"});
  const bool use = in.is_undefined() || (truth(a[1]) && !truth(in));
  if (!use) return in;
  return absent(a[0]) ? r.heap().string("") : a[0];
}

Value filter_items(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  bind("items", args, {});
  if (in.is_undefined()) return r.heap().list({}, Kind::kGenerator);
  if (!in.is(Kind::kDict)) fail("items: '{}' is not a mapping", type_name(in));
  std::vector<Value> out;
  for (const auto& [k, v] : in.dict().items) out.push_back(r.heap().list({k, v}, Kind::kTuple));
  return r.heap().list(std::move(out), Kind::kGenerator);
}

Value filter_dictsort(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("dictsort", args, {"case_sensitive", "by", "reverse"});
  if (!in.is(Kind::kDict)) fail("dictsort: '{}' is not a mapping", type_name(in));
  const std::string by = absent(a[1]) ? "key" : text_of(r, a[1]).text;
  if (by != "key" && by != "value")
    fail("dictsort: by is '{}'; expected key or value", printable(by, 40));
  std::vector<Value> pairs;
  for (const auto& [k, v] : in.dict().items) pairs.push_back(r.heap().list({k, v}, Kind::kTuple));
  const bool sensitive = truth(a[0]);
  const size_t which = by == "key" ? 0 : 1;
  return r.heap().list(sorted(
      std::move(pairs),
      [&](const Value& v) { return sort_key(r, v.list().items[which], sensitive); }, truth(a[2])));
}

Value filter_sort(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("sort", args, {"reverse", "case_sensitive", "attribute"});
  const auto key = [&](const Value& v) { return sort_key(r, chosen(r, v, a[2]), truth(a[1])); };
  return r.heap().list(sorted(r.elements(in), key, truth(a[0])));
}

Value filter_unique(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("unique", args, {"case_sensitive", "attribute"});
  std::vector<Value> out, keys;
  for (const Value& v : r.elements(in)) {
    const Value key = sort_key(r, chosen(r, v, a[1]), truth(a[0]));
    check_hashable(key);
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key); }))
      continue;
    keys.push_back(key);
    out.push_back(v);
  }
  return r.heap().list(std::move(out), Kind::kGenerator);
}

Value filter_map(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  std::vector<Value> out;
  const auto named = [&](std::string_view name) -> const Value* {
    for (const auto& [key, value] : args.named)
      if (key == name) return &value;
    return nullptr;
  };
  if (const Value* path = args.positional.empty() ? named("attribute") : nullptr) {
    const Value* otherwise = named("default");
    for (const Value& v : r.elements(in)) {
      const Value found = deep_attribute(r, v, *path);
      out.push_back(found.is_undefined() && otherwise ? *otherwise : found);
    }
    return r.heap().list(std::move(out), Kind::kGenerator);
  }
  if (args.positional.empty()) fail("map needs the name of a filter or attribute=");
  const std::string name = text_of(r, args.positional[0]).text;
  const Arguments rest{{args.positional.begin() + 1, args.positional.end()}, args.named};
  for (const Value& v : r.elements(in)) out.push_back(r.filter(name, v, rest));
  return r.heap().list(std::move(out), Kind::kGenerator);
}

// Implements select, reject, selectattr and rejectattr.
Value filter_choose(Runtime& r, const Value& in, const std::string& name, const Arguments& args) {
  const bool by_attribute = name.ends_with("attr"), keep = name.starts_with("select");
  size_t used = 0;
  Value path;
  if (by_attribute) {
    if (args.positional.empty()) fail("{} needs the name of an attribute", name);
    path = args.positional[used++];
  }
  const std::string test =
      args.positional.size() > used ? text_of(r, args.positional[used++]).text : std::string();
  const Arguments rest{
      {args.positional.begin() + static_cast<ptrdiff_t>(used), args.positional.end()}, args.named};
  std::vector<Value> out;
  for (const Value& v : r.elements(in)) {
    const Value subject = by_attribute ? deep_attribute(r, v, path) : v;
    const bool yes = test.empty() ? truth(subject) : r.test(test, subject, rest);
    if (yes == keep) out.push_back(v);
  }
  return r.heap().list(std::move(out), Kind::kGenerator);
}

Value filter_indent(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("indent", args, {"width", "first", "blank"});
  if (!in.is_string()) fail("indent: '{}' is not a string", type_name(in));
  const Str& s = in.str();
  const Value spaces =
      a[0].is_string()
          ? a[0]
          : r.heap().string(std::string(static_cast<size_t>(std::clamp<int64_t>(
                                            integer_argument(a[0], 4, "width"), 0, 4096)),
                                        ' '));
  StrBuilder whole;
  whole.add(s);
  whole.add("\n");
  const Value lines = r.call_method(r.heap().string(whole.take()), "splitlines", {});
  StrBuilder out;
  bool first = true;
  for (const Value& line : lines.list().items) {
    if (!first) out.add("\n");
    const bool indents = first ? truth(a[1]) : truth(a[2]) || !line.str().text.empty();
    if (indents) out.add(spaces.str());
    out.add(line.str());
    first = false;
    if (out.size() > (size_t{1} << 28)) fail("the result of indent is too long");
  }
  return r.heap().string(out.take());
}

Value filter_title(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  bind("title", args, {});
  const Str& s = text_of(r, in);
  StrBuilder out;
  bool start = true;
  for (size_t i = 0; i < s.text.size();) {
    const auto c = unicode::decode(s.text.data() + i);
    const bool separator =
        python_space(c.code) ||
        std::string_view("-({[<").find(static_cast<char>(c.code < 128 ? c.code : 'x')) !=
            std::string_view::npos;
    out.add(changed_case(substr(s, i, i + c.length), !separator && start));
    start = separator;
    i += c.length;
  }
  return r.heap().string(out.take());
}

Value filter_int(Runtime&, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("int", args, {"default", "base"});
  check_defined(in, "int");
  const Value otherwise = absent(a[0]) ? Value(int64_t{0}) : a[0];
  if (in.is_integer()) return Value(in.integer());
  double d = std::nan("");
  if (in.is(Kind::kFloat)) d = in.number();
  if (in.is_string()) {
    const std::string text = number_text(in.str());
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const char* end = text.data() + text.size();
    int64_t i = 0;
    const auto parsed = std::from_chars(
        begin, end, i,
        static_cast<int>(std::clamp<int64_t>(integer_argument(a[1], 10, "base"), 2, 36)));
    if (parsed.ec == std::errc() && parsed.ptr == end && begin != end) return Value(i);
    const auto number = std::from_chars(begin, end, d);
    if (number.ec != std::errc() || number.ptr != end) d = std::nan("");
  }
  return std::isfinite(d) && std::abs(d) < 9e18 ? Value(static_cast<int64_t>(d)) : otherwise;
}

Value filter_float(Runtime&, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("float", args, {"default"});
  check_defined(in, "float");
  if (in.is_number()) return Value(in.number());
  if (in.is_string()) {
    const std::string text = number_text(in.str());
    double d = 0;
    const char* begin = text.data() + (text.starts_with('+') ? 1 : 0);
    const auto parsed = std::from_chars(begin, text.data() + text.size(), d);
    if (parsed.ec == std::errc() && parsed.ptr == text.data() + text.size() && !text.empty())
      return Value(d);
  }
  return absent(a[0]) ? Value(0.0) : a[0];
}

Value filter_round(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("round", args, {"precision", "method"});
  const int64_t precision = std::clamp<int64_t>(integer_argument(a[0], 0, "precision"), -30, 30);
  const std::string method = absent(a[1]) ? "common" : text_of(r, a[1]).text;
  if (!in.is_number()) fail("round: '{}' is not a number", type_name(in));
  if (method == "common") {
    if (precision < 0) fail("round: negative precision is not supported");
    if (in.is_integer()) return Value(in.integer());
    const std::string text =
        fmt::format("{:.{}f}", in.number(), precision);  // rounds the exact value, ties to even
    double d = 0;
    std::from_chars(text.data(), text.data() + text.size(), d);
    return Value(d);
  }
  if (method != "ceil" && method != "floor")
    fail("round: method is '{}'; expected common, ceil or floor", printable(method, 40));
  const double scale = std::pow(10.0, static_cast<double>(precision));
  return Value(
      (method == "ceil" ? std::ceil(in.number() * scale) : std::floor(in.number() * scale)) /
      scale);
}

Value filter_extreme(Runtime& r, const Value& in, const std::string& name, const Arguments& args) {
  const bool largest = name == "max";
  const auto a = bind(name, args, {"case_sensitive", "attribute"});
  const std::vector<Value> items = r.elements(in);
  static const std::string kEmpty = "an empty sequence";
  if (items.empty()) return Value::undefined(&kEmpty);
  const auto key = [&](const Value& v) { return sort_key(r, chosen(r, v, a[1]), truth(a[0])); };
  Value best = items[0], best_key = key(items[0]);
  for (size_t i = 1; i < items.size(); ++i) {
    const Value k = key(items[i]);
    const int c = compare(k, best_key);
    if (largest ? c > 0 : c < 0) {
      best = items[i];
      best_key = k;
    }
  }
  return best;
}

Value filter_sum(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  const auto a = bind("sum", args, {"attribute", "start"});
  Value total = absent(a[1]) ? Value(int64_t{0}) : a[1];
  for (const Value& v : r.elements(in)) total = arithmetic("+", total, chosen(r, v, a[0]));
  return total;
}

Value filter_reverse(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  bind("reverse", args, {});
  std::vector<Value> items = r.elements(in);
  std::reverse(items.begin(), items.end());
  if (!in.is_string()) return r.heap().list(std::move(items), Kind::kGenerator);
  StrBuilder out;
  for (const Value& v : items) out.add(v.str());
  return r.heap().string(out.take());
}

Value filter_first(Runtime& r, const Value& in, const std::string&, const Arguments&) {
  return end_of(r, in, /*last=*/false);
}

Value filter_last(Runtime& r, const Value& in, const std::string&, const Arguments&) {
  return end_of(r, in, /*last=*/true);
}

Value filter_list(Runtime& r, const Value& in, const std::string&, const Arguments&) {
  return r.heap().list(r.elements(in));
}

Value filter_string(Runtime& r, const Value& in, const std::string&, const Arguments&) {
  return r.to_str(in);
}

// Calls the string's method of the same name.
Value filter_through_method(Runtime& r, const Value& in, const std::string& name,
                            const Arguments& args) {
  return r.call_method(r.to_str(in), name, args);
}

Value filter_trim(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  return r.call_method(r.to_str(in), "strip", args);
}

Value filter_replace(Runtime& r, const Value& in, const std::string& name, const Arguments& args) {
  Arguments texts = args;
  for (size_t i = 0; i < texts.positional.size() && i < 2; ++i)
    texts.positional[i] = r.to_str(texts.positional[i]);
  return r.call_method(r.to_str(in), name, texts);
}

Value filter_abs(Runtime&, const Value& in, const std::string&, const Arguments&) {
  const bool negative = in.is_number() && compare(in, Value(int64_t{0})) < 0;
  return arithmetic(negative ? "-" : "+", Value(int64_t{0}), in);
}

Value filter_attr(Runtime& r, const Value& in, const std::string& name, const Arguments& args) {
  return r.attribute(in, text_of(r, bind(name, args, {"name"})[0]).text);
}

Value filter_wordcount(Runtime& r, const Value& in, const std::string&, const Arguments&) {
  const Value words = r.call_method(r.to_str(in), "split", {});
  return Value(static_cast<int64_t>(words.list().items.size()));
}

Value filter_format(Runtime& r, const Value& in, const std::string&, const Arguments& args) {
  return percent_format(r, text_of(r, in), args.positional);
}

}  // namespace moebius::jinja
