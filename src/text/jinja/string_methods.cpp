// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/string_methods.h"

#include <algorithm>

#include "base/error.h"
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

// Returns the part that remains after stripping `chars`; null: white space.
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

}  // namespace

Value StringMethods::strip() {
  const auto a = bind(name_, args_, {"chars"});
  const Str* chars = a[0].is_undefined() || a[0].is_none() ? nullptr : &need_string(a[0], name_);
  return make(stripped(self_, chars, name_ != "rstrip", name_ != "lstrip"));
}

Value StringMethods::capitalize() {
  const size_t first = self_.text.empty() ? 0 : unicode::decode(self_.text.data()).length;
  StrBuilder out;
  out.add(changed_case(substr(self_, 0, first), true));
  out.add(changed_case(substr(self_, first, self_.text.size()), false));
  return make(out.take());
}

Value StringMethods::remove_affix() {
  const Str& affix_text = need_string(bind(name_, args_, {"text"})[0], name_);
  const bool prefix = name_ == "removeprefix";
  if (prefix ? !self_.text.starts_with(affix_text.text) : !self_.text.ends_with(affix_text.text))
    return part(0, self_.text.size());
  return prefix ? part(affix_text.text.size(), self_.text.size())
                : part(0, self_.text.size() - affix_text.text.size());
}

Value StringMethods::count() {
  const Str& what = need_string(bind(name_, args_, {"text"})[0], name_);
  if (what.text.empty()) return Value(static_cast<int64_t>(count_chars(self_.text)) + 1);
  spend_search(self_.text, what.text);
  int64_t n = 0;
  for (size_t i = 0; (i = self_.text.find(what.text, i)) != std::string::npos;
       i += what.text.size())
    ++n;
  return Value(n);
}

Value StringMethods::is_space() {
  return all([](char32_t c) { return python_space(c); });
}
Value StringMethods::is_upper() {
  return has_case(unicode::bit(unicode::kLu),
                  unicode::bit(unicode::kLl) | unicode::bit(unicode::kLt));
}
Value StringMethods::is_lower() {
  return has_case(unicode::bit(unicode::kLl),
                  unicode::bit(unicode::kLu) | unicode::bit(unicode::kLt));
}

Value StringMethods::has_case(uint32_t want, uint32_t other) {
  spend(self_.text.size() / 16);
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
  spend(self_.text.size() / 16);
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

Value StringMethods::split() {
  const bool from_right = name_ == "rsplit";
  const auto a = bind(name_, args_, {"sep", "maxsplit"});
  const int64_t limit = integer_or(a[1], -1, name_);
  if (a[0].is_undefined() || a[0].is_none()) return split_spaces(limit, from_right);
  const std::string& sep = need_string(a[0], name_).text;
  if (sep.empty()) fail("empty separator");
  spend_search(self_.text, sep);
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
  spend(self_.text.size() / 16);
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

Value StringMethods::affix() {
  const bool start = name_ == "startswith";
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
  spend_search(self_.text, old.text);
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

Value StringMethods::find() {
  const bool from_right = name_ == "rfind", must = name_ == "index";
  const std::string& what = need_string(bind(name_, args_, {"text"})[0], name_).text;
  spend_search(self_.text, what);
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

Value StringMethods::partition() {
  const bool from_right = name_ == "rpartition";
  const std::string& sep = need_string(bind(name_, args_, {"sep"})[0], name_).text;
  if (sep.empty()) fail("empty separator");
  spend_search(self_.text, sep);
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

// Formats fields {}, {0} and {name}, without format specifications.
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

Value StringMethods::pad() {
  const bool left = name_ != "ljust";
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

}  // namespace moebius::jinja
