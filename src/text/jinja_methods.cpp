// SPDX-License-Identifier: Apache-2.0
// Methods of strings, lists, dictionaries and loops.
#include <algorithm>

#include "base/error.h"
#include "text/jinja_run.h"
#include "text/unicode.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

const Str& need_string(const Value& v, std::string_view method) {
  if (!v.is_string()) fail("{} needs a string, not '{}'", method, type_name(v));
  return v.str();
}

int64_t integer_or(const Value& v, int64_t absent, std::string_view method) {
  if (v.is_undefined() || v.is_none()) return absent;
  if (!v.is_integer()) fail("{} needs an integer, not '{}'", method, type_name(v));
  return v.integer();
}

// [begin, end) of what remains after stripping. `chars` null: white space.
Str stripped(const Str& s, const Str* chars, bool left, bool right) {
  const auto strips = [&](std::string_view c) {
    return chars ? chars->text.find(c) != std::string::npos
                 : python_space(unicode::decode(c.data()).code);
  };
  size_t begin = 0, end = s.text.size();
  const std::string_view text = s.text;
  while (left && begin < end) {
    const size_t n = unicode::decode(text.data() + begin).length;
    if (!strips(text.substr(begin, n))) break;
    begin += n;
  }
  while (right && end > begin) {
    const size_t n = unicode::decode_before(text, end).length;
    if (!strips(text.substr(end - n, n))) break;
    end -= n;
  }
  return substr(s, begin, end);
}

class StringMethods {
 public:
  StringMethods(Runtime& runtime, const Str& self, const std::string& name, const Arguments& args)
      : runtime_(runtime), heap_(runtime.heap()), self_(self), name_(name), args_(args) {
    spend(self.text.size() / 64);
  }
  Value call();

 private:
  Value make(Str s) { return heap_.string(std::move(s)); }
  Value part(size_t begin, size_t end) { return make(substr(self_, begin, end)); }
  Value split(bool from_right);
  Value split_spaces(int64_t limit, bool from_right);
  Value splitlines();
  Value affix(bool start);
  Value replace();
  Value find(bool from_right, bool must);
  Value join();
  Value partition(bool from_right);
  Value format();
  Value title();
  Value pad(bool left);
  Value all(bool (*predicate)(uint32_t mask, char32_t c));
  Value has_case(uint32_t want, uint32_t other);

  Runtime& runtime_;
  Heap& heap_;
  const Str& self_;
  const std::string& name_;
  const Arguments& args_;
};

Value StringMethods::call() {
  if (name_ == "strip" || name_ == "lstrip" || name_ == "rstrip") {
    const auto a = bind(name_, args_, {"chars"});
    const Str* chars = a[0].is_undefined() || a[0].is_none() ? nullptr : &need_string(a[0], name_);
    return make(stripped(self_, chars, name_ != "rstrip", name_ != "lstrip"));
  }
  if (name_ == "split") return split(false);
  if (name_ == "rsplit") return split(true);
  if (name_ == "splitlines") return splitlines();
  if (name_ == "startswith") return affix(true);
  if (name_ == "endswith") return affix(false);
  if (name_ == "replace") return replace();
  if (name_ == "upper") return make(changed_case(self_, true));
  if (name_ == "lower") return make(changed_case(self_, false));
  if (name_ == "title") return title();
  if (name_ == "capitalize") {
    const size_t first = self_.text.empty() ? 0 : unicode::decode(self_.text.data()).length;
    StrBuilder out;
    out.add(changed_case(substr(self_, 0, first), true));
    out.add(changed_case(substr(self_, first, self_.text.size()), false));
    return make(out.take());
  }
  if (name_ == "find" || name_ == "index") return find(false, name_ == "index");
  if (name_ == "rfind") return find(true, false);
  if (name_ == "join") return join();
  if (name_ == "partition") return partition(false);
  if (name_ == "rpartition") return partition(true);
  if (name_ == "format") return format();
  if (name_ == "ljust" || name_ == "rjust" || name_ == "zfill") return pad(name_ != "ljust");
  if (name_ == "removeprefix" || name_ == "removesuffix") {
    const Str& affix_text = need_string(bind(name_, args_, {"text"})[0], name_);
    const bool prefix = name_ == "removeprefix";
    if (prefix ? !self_.text.starts_with(affix_text.text) : !self_.text.ends_with(affix_text.text))
      return part(0, self_.text.size());
    return prefix ? part(affix_text.text.size(), self_.text.size())
                  : part(0, self_.text.size() - affix_text.text.size());
  }
  if (name_ == "count") {
    const Str& what = need_string(bind(name_, args_, {"text"})[0], name_);
    if (what.text.empty()) return Value(static_cast<int64_t>(count_chars(self_.text)) + 1);
    int64_t n = 0;
    for (size_t i = 0; (i = self_.text.find(what.text, i)) != std::string::npos;
         i += what.text.size())
      ++n;
    return Value(n);
  }
  if (name_ == "isdigit")
    return all([](uint32_t mask, char32_t) { return (mask & unicode::bit(unicode::kNd)) != 0; });
  if (name_ == "isalpha")
    return all([](uint32_t mask, char32_t) { return (mask & unicode::kL) != 0; });
  if (name_ == "isalnum")
    return all([](uint32_t mask, char32_t) { return (mask & (unicode::kL | unicode::kN)) != 0; });
  if (name_ == "isspace") return all([](uint32_t, char32_t c) { return python_space(c); });
  if (name_ == "isupper")
    return has_case(unicode::bit(unicode::kLu),
                    unicode::bit(unicode::kLl) | unicode::bit(unicode::kLt));
  if (name_ == "islower")
    return has_case(unicode::bit(unicode::kLl),
                    unicode::bit(unicode::kLu) | unicode::bit(unicode::kLt));
  fail("strings have no method '{}'", name_);
}

Value StringMethods::all(bool (*predicate)(uint32_t mask, char32_t c)) {
  for (size_t i = 0; i < self_.text.size();) {
    const auto c = unicode::decode(self_.text.data() + i);
    if (!predicate(unicode::Table::get().mask(c.code), c.code)) return Value(false);
    i += c.length;
  }
  return Value(!self_.text.empty());
}

Value StringMethods::has_case(uint32_t want, uint32_t other) {
  bool seen = false;
  for (size_t i = 0; i < self_.text.size();) {
    const auto c = unicode::decode(self_.text.data() + i);
    const uint32_t mask = unicode::Table::get().mask(c.code);
    if (mask & other) return Value(false);
    seen = seen || (mask & want) != 0;
    i += c.length;
  }
  return Value(seen);
}

Value StringMethods::split_spaces(int64_t limit, bool from_right) {
  std::vector<std::pair<size_t, size_t>> words;
  const std::string& text = self_.text;
  for (size_t i = 0; i < text.size();) {
    auto c = unicode::decode(text.data() + i);
    if (python_space(c.code)) {
      i += c.length;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !python_space((c = unicode::decode(text.data() + end)).code))
      end += c.length;
    words.emplace_back(i, end);
    i = end;
  }
  std::vector<Value> out;
  const size_t n = words.size();
  const size_t whole =
      limit < 0 || static_cast<size_t>(limit) >= n ? n : static_cast<size_t>(limit);
  if (whole == n) {
    for (const auto& [b, e] : words) out.push_back(part(b, e));
  } else if (from_right) {
    out.push_back(part(0, words[n - whole - 1].second));
    for (size_t i = n - whole; i < n; ++i) out.push_back(part(words[i].first, words[i].second));
  } else {
    for (size_t i = 0; i < whole; ++i) out.push_back(part(words[i].first, words[i].second));
    out.push_back(make(substr(self_, words[whole].first, text.size())));
  }
  return heap_.list(std::move(out));
}

Value StringMethods::split(bool from_right) {
  const auto a = bind(name_, args_, {"sep", "maxsplit"});
  const int64_t limit = integer_or(a[1], -1, name_);
  if (a[0].is_undefined() || a[0].is_none()) return split_spaces(limit, from_right);
  const std::string& sep = need_string(a[0], name_).text;
  if (sep.empty()) fail("empty separator");
  std::vector<size_t> cuts;
  if (from_right) {
    for (size_t end = self_.text.size(); limit < 0 || cuts.size() < static_cast<size_t>(limit);) {
      if (end < sep.size()) break;
      const size_t at = self_.text.rfind(sep, end - sep.size());
      if (at == std::string::npos) break;
      cuts.push_back(at);
      end = at;
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    for (size_t i = 0; limit < 0 || cuts.size() < static_cast<size_t>(limit);) {
      const size_t at = self_.text.find(sep, i);
      if (at == std::string::npos) break;
      cuts.push_back(at);
      i = at + sep.size();
    }
  }
  std::vector<Value> out;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    out.push_back(part(begin, cut));
    begin = cut + sep.size();
  }
  out.push_back(part(begin, self_.text.size()));
  return heap_.list(std::move(out));
}

Value StringMethods::splitlines() {
  const auto a = bind(name_, args_, {"keepends"});
  const bool keep = truth(a[0]);
  std::vector<Value> out;
  const std::string& text = self_.text;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const auto c = unicode::decode(text.data() + i);
    const bool breaks = (c.code >= 0x0a && c.code <= 0x0d) || (c.code >= 0x1c && c.code <= 0x1e) ||
                        c.code == 0x85 || c.code == 0x2028 || c.code == 0x2029;
    size_t end = i + c.length;
    if (breaks) {
      if (c.code == '\r' && end < text.size() && text[end] == '\n') ++end;
      out.push_back(part(begin, keep ? end : i));
      begin = end;
    }
    i = end;
  }
  if (begin < text.size()) out.push_back(part(begin, text.size()));
  return heap_.list(std::move(out));
}

Value StringMethods::affix(bool start) {
  const auto a = bind(name_, args_, {"text"});
  const auto fits = [&](const Value& v) {
    const std::string& t = need_string(v, name_).text;
    return start ? self_.text.starts_with(t) : self_.text.ends_with(t);
  };
  if (!a[0].is(Kind::kTuple)) return Value(fits(a[0]));
  return Value(std::any_of(a[0].list().items.begin(), a[0].list().items.end(), fits));
}

Value StringMethods::replace() {
  const auto a = bind(name_, args_, {"old", "new", "count"});
  const Str &old = need_string(a[0], name_), &fresh = need_string(a[1], name_);
  int64_t left = integer_or(a[2], -1, name_);
  StrBuilder out;
  size_t done = 0;
  const size_t n = self_.text.size();
  for (size_t i = 0; left != 0 && i <= n; --left) {
    const size_t at = self_.text.find(old.text, i);
    if (at == std::string::npos) break;
    out.add(self_, done, at);
    out.add(fresh);
    done = at + old.text.size();
    i = done;
    if (old.text.empty()) {
      const size_t next = at < n ? at + unicode::decode(self_.text.data() + at).length : n + 1;
      out.add(self_, done, std::min(next, n));
      done = std::min(next, n);
      i = next;
    }
    if (out.size() > (size_t{1} << 28)) fail("the result of replace is too long");
  }
  out.add(self_, done, n);
  return make(out.take());
}

Value StringMethods::find(bool from_right, bool must) {
  const std::string& what = need_string(bind(name_, args_, {"text"})[0], name_).text;
  const size_t at = from_right ? self_.text.rfind(what) : self_.text.find(what);
  if (at == std::string::npos && must) fail("substring not found");
  return Value(at == std::string::npos
                   ? int64_t{-1}
                   : static_cast<int64_t>(count_chars(std::string_view(self_.text).substr(0, at))));
}

Value StringMethods::join() {
  StrBuilder out;
  bool first = true;
  for (const Value& v : runtime_.elements(bind(name_, args_, {"items"})[0])) {
    if (!std::exchange(first, false)) out.add(self_);
    out.add(need_string(v, name_));
    if (out.size() > (size_t{1} << 28)) fail("the result of join is too long");
  }
  return make(out.take());
}

Value StringMethods::partition(bool from_right) {
  const std::string& sep = need_string(bind(name_, args_, {"sep"})[0], name_).text;
  if (sep.empty()) fail("empty separator");
  const size_t at = from_right ? self_.text.rfind(sep) : self_.text.find(sep),
               n = self_.text.size();
  if (at == std::string::npos) {
    const Value whole = part(0, n), empty = heap_.string("");
    return heap_.list(from_right ? std::vector<Value>{empty, empty, whole}
                                 : std::vector<Value>{whole, empty, empty},
                      Kind::kTuple);
  }
  return heap_.list({part(0, at), part(at, at + sep.size()), part(at + sep.size(), n)},
                    Kind::kTuple);
}

// {} {0} {name}, without format specifications.
Value StringMethods::format() {
  StrBuilder out;
  size_t next = 0;
  const std::string& t = self_.text;
  for (size_t i = 0; i < t.size();) {
    if ((t[i] == '{' || t[i] == '}') && i + 1 < t.size() && t[i + 1] == t[i]) {
      out.add(self_, i, i + 1);
      i += 2;
    } else if (t[i] == '{') {
      const size_t end = t.find('}', i);
      if (end == std::string::npos) fail("format: '{{' without '}}'");
      const std::string field = t.substr(i + 1, end - i - 1);
      if (field.find_first_of(":!.[") != std::string::npos)
        fail("format: '{{{}}}' is not supported", printable(field, 60));
      Value v;
      if (field.empty() || field.find_first_not_of("0123456789") == std::string::npos) {
        const size_t index = field.empty()      ? next++
                             : field.size() > 6 ? SIZE_MAX
                                                : static_cast<size_t>(std::stoul(field));
        if (index >= args_.positional.size()) fail("format: argument {} is missing", field);
        v = args_.positional[index];
      } else {
        const auto it = std::find_if(args_.named.begin(), args_.named.end(),
                                     [&](const auto& p) { return p.first == field; });
        if (it == args_.named.end()) fail("format: argument '{}' is missing", printable(field, 60));
        v = it->second;
      }
      write_str(v, out);
      i = end + 1;
    } else {
      const size_t n = unicode::decode(t.data() + i).length;
      out.add(self_, i, i + n);
      i += n;
    }
  }
  return make(out.take());
}

Value StringMethods::title() {
  StrBuilder out;
  bool inside = false;
  for (size_t i = 0; i < self_.text.size();) {
    const auto c = unicode::decode(self_.text.data() + i);
    const Str one = substr(self_, i, i + c.length);
    const bool letter =
        (unicode::Table::get().mask(c.code) &
         (unicode::bit(unicode::kLu) | unicode::bit(unicode::kLl) | unicode::bit(unicode::kLt))) !=
        0;
    if (letter)
      out.add(changed_case(one, !inside));
    else
      out.add(one);
    inside = letter;
    i += c.length;
  }
  return make(out.take());
}

Value StringMethods::pad(bool left) {
  const auto a = bind(name_, args_, {"width", "fill"});
  const int64_t width = integer_or(a[0], 0, name_);
  if (width > (1 << 24)) fail("{}: a width of {} is too large", name_, width);
  const Value space = heap_.string(name_ == "zfill" ? "0" : " ");
  const Str& fill = a[1].is_undefined() ? space.str() : need_string(a[1], name_);
  StrBuilder filling, out;
  for (auto n = static_cast<int64_t>(count_chars(self_.text)); n < width; ++n) filling.add(fill);
  const bool sign =
      name_ == "zfill" && (self_.text.starts_with('-') || self_.text.starts_with('+'));
  out.add(self_, 0, sign ? 1 : 0);
  if (left) out.add(filling.get());
  out.add(self_, sign ? 1 : 0, self_.text.size());
  if (!left) out.add(filling.get());
  return make(out.take());
}

Value list_method(Runtime& runtime, List& self, const std::string& name, const Arguments& args) {
  auto& items = self.items;
  const auto position = [&](const Value& v, int64_t absent, bool must) {
    int64_t i = integer_or(v, absent, name);
    const auto n = static_cast<int64_t>(items.size());
    if (i < 0) i += n;
    if (must && (i < 0 || i >= n)) fail("{}: index out of range", name);
    return std::clamp<int64_t>(i, 0, n);
  };
  if (name == "append" || name == "insert") {
    const auto a =
        name == "append" ? bind(name, args, {"value"}) : bind(name, args, {"index", "value"});
    runtime.heap().charge(sizeof(Value));
    spend(items.size() / 64);
    items.insert(items.begin() + (name == "append" ? static_cast<int64_t>(items.size())
                                                   : position(a[0], 0, false)),
                 a.back());
    return Value::none();
  }
  if (name == "extend") {
    const std::vector<Value> more = runtime.elements(bind(name, args, {"values"})[0]);
    items.insert(items.end(), more.begin(), more.end());
    return Value::none();
  }
  if (name == "pop") {
    if (items.empty()) fail("pop from empty list");
    const int64_t at = position(bind(name, args, {"index"})[0], -1, true);
    const Value v = items[static_cast<size_t>(at)];
    spend(items.size() / 64);
    items.erase(items.begin() + at);
    return v;
  }
  if (name == "copy") return runtime.heap().list(items);
  if (name == "reverse") {
    std::reverse(items.begin(), items.end());
    return Value::none();
  }
  const Value what = bind(name, args, {"value"})[0];
  const auto same = [&](const Value& v) { return equal(v, what); };
  if (name == "count")
    return Value(static_cast<int64_t>(std::count_if(items.begin(), items.end(), same)));
  const auto it = std::find_if(items.begin(), items.end(), same);
  if (it == items.end()) fail("index: the value is not in the list");
  return Value(static_cast<int64_t>(it - items.begin()));
}

Value dict_method(Runtime& runtime, Dict& self, const std::string& name, const Arguments& args) {
  Heap& heap = runtime.heap();
  if (name == "items" || name == "keys" || name == "values") {
    bind(name, args, {});
    std::vector<Value> out;
    for (const auto& [k, v] : self.items)
      out.push_back(name == "items" ? heap.list({k, v}, Kind::kTuple) : name == "keys" ? k : v);
    return heap.list(std::move(out));
  }
  if (name == "get" || name == "pop" || name == "setdefault") {
    const auto a = bind(name, args, {"key", "default"});
    const Value* found = self.find(a[0]);
    const Value v = found                                                     ? *found
                    : a[1].is_undefined() && a[1].undefined_name() == nullptr ? Value::none()
                                                                              : a[1];
    if (name == "pop") self.erase(a[0]);
    if (name == "setdefault" && !found) self.set(a[0], v);
    heap.charge(2 * sizeof(Value));
    return v;
  }
  if (name == "copy") {
    Dict* d = heap.dict();
    for (const auto& [k, v] : self.items) d->set(k, v);
    heap.charge(self.items.size() * 2 * sizeof(Value));
    return Value(d);
  }
  // update
  if (args.positional.size() > 1) fail("update takes at most one positional argument");
  if (!args.positional.empty()) {
    if (!args.positional[0].is(Kind::kDict)) fail("update needs a mapping");
    const auto more = args.positional[0].dict().items;
    heap.charge(more.size() * 2 * sizeof(Value));
    for (const auto& [k, v] : more) self.set(k, v);
  }
  for (const auto& [k, v] : args.named) self.set(heap.string(k), v);
  return Value::none();
}

Value loop_method(Loop& loop, const std::string& name, const Arguments& args, Heap& heap) {
  if (name == "cycle") {
    if (args.positional.empty()) fail("cycle needs at least one value");
    return args.positional[loop.index % args.positional.size()];
  }
  const Value now = heap.list(args.positional, Kind::kTuple);
  const bool changed = loop.changed.is_undefined() || !equal(loop.changed, now);
  loop.changed = now;
  return Value(changed);
}

}  // namespace

Value Runtime::call_method(const Value& self, const std::string& name, Arguments args) {
  spend();
  switch (self.kind()) {
    case Kind::kString:
      return StringMethods(*this, self.str(), name, args).call();
    case Kind::kList:
    case Kind::kTuple:
      return list_method(*this, self.list(), name, args);
    case Kind::kDict:
      return dict_method(*this, self.dict(), name, args);
    case Kind::kLoop:
      return loop_method(self.loop(), name, args, heap_);
    default:
      fail("'{}' object has no method '{}'", type_name(self), name);
  }
}

}  // namespace moebius::jinja
