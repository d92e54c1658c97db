// SPDX-License-Identifier: Apache-2.0
// Implements the methods of strings, with Python's semantics; methods that share a function look
// at the name.
#include <algorithm>

#include "base/error.h"
#include "text/jinja/names.h"
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

Value part(const Call& c, size_t begin, size_t end) {
  return c.heap().string(substr(c.str(), begin, end));
}

Value string_strip(const Call& c) {
  const Str* chars =
      c.args[0].is_undefined() || c.args[0].is_none() ? nullptr : &need_string(c.args[0], c.name);
  return c.heap().string(stripped(c.str(), chars, c.name != "rstrip", c.name != "lstrip"));
}

Value string_capitalize(const Call& c) {
  const size_t first = c.str().text.empty() ? 0 : unicode::decode(c.str().text.data()).length;
  StrBuilder out;
  out.add(changed_case(substr(c.str(), 0, first), true));
  out.add(changed_case(substr(c.str(), first, c.str().text.size()), false));
  return c.heap().string(out.take());
}

Value string_count(const Call& c) {
  const Str& what = need_string(c.args[0], c.name);
  if (what.text.empty()) return Value(static_cast<int64_t>(count_chars(c.str().text)) + 1);
  spend_search(c.str().text, what.text);
  int64_t n = 0;
  for (size_t i = 0; (i = c.str().text.find(what.text, i)) != std::string::npos;
       i += what.text.size())
    ++n;
  return Value(n);
}

// Returns whether all characters are decimal digits, and there is one.
Value string_isdigit(const Call& c) {
  const std::string& text = c.str().text;
  spend(text.size() / 16);
  for (size_t i = 0; i < text.size();) {
    const auto ch = unicode::decode(text.data() + i);
    if ((unicode::Table::get().mask(ch.code) & unicode::mask_of("Nd")) == 0) return Value(false);
    i += ch.length;
  }
  return Value(!text.empty());
}

Value split_spaces(const Call& c, int64_t limit, bool from_right) {
  spend(c.str().text.size() / 16);
  std::vector<std::pair<size_t, size_t>> words;
  const std::string& text = c.str().text;
  for (size_t i = 0; i < text.size();) {
    auto ch = unicode::decode(text.data() + i);
    if (python_space(ch.code)) {
      i += ch.length;
      continue;
    }
    size_t end = i;
    while (end < text.size() && !python_space((ch = unicode::decode(text.data() + end)).code))
      end += ch.length;
    words.emplace_back(i, end);
    i = end;
  }
  std::vector<Value> out;
  const size_t n = words.size();
  const size_t whole =
      limit < 0 || static_cast<size_t>(limit) >= n ? n : static_cast<size_t>(limit);
  if (whole == n) {
    for (const auto& [b, e] : words) out.push_back(part(c, b, e));
  } else if (from_right) {
    out.push_back(part(c, 0, words[n - whole - 1].second));
    for (size_t i = n - whole; i < n; ++i) out.push_back(part(c, words[i].first, words[i].second));
  } else {
    for (size_t i = 0; i < whole; ++i) out.push_back(part(c, words[i].first, words[i].second));
    out.push_back(c.heap().string(substr(c.str(), words[whole].first, text.size())));
  }
  return c.heap().list(std::move(out));
}

Value string_split(const Call& c) {
  const bool from_right = c.name == "rsplit";
  const int64_t limit = integer_or(c.args[1], -1, c.name);
  if (c.args[0].is_undefined() || c.args[0].is_none()) return split_spaces(c, limit, from_right);
  const std::string& sep = need_string(c.args[0], c.name).text;
  if (sep.empty()) fail("empty separator");
  spend_search(c.str().text, sep);
  std::vector<size_t> cuts;
  if (from_right) {
    for (size_t end = c.str().text.size(); limit < 0 || cuts.size() < static_cast<size_t>(limit);) {
      if (end < sep.size()) break;
      const size_t at = c.str().text.rfind(sep, end - sep.size());
      if (at == std::string::npos) break;
      cuts.push_back(at);
      end = at;
    }
    std::reverse(cuts.begin(), cuts.end());
  } else {
    for (size_t i = 0; limit < 0 || cuts.size() < static_cast<size_t>(limit);) {
      const size_t at = c.str().text.find(sep, i);
      if (at == std::string::npos) break;
      cuts.push_back(at);
      i = at + sep.size();
    }
  }
  std::vector<Value> out;
  size_t begin = 0;
  for (const size_t cut : cuts) {
    out.push_back(part(c, begin, cut));
    begin = cut + sep.size();
  }
  out.push_back(part(c, begin, c.str().text.size()));
  return c.heap().list(std::move(out));
}

Value string_splitlines(const Call& c) {
  const bool keep = truth(c.args[0]);
  spend(c.str().text.size() / 16);
  std::vector<Value> out;
  const std::string& text = c.str().text;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const auto ch = unicode::decode(text.data() + i);
    const bool breaks = (ch.code >= 0x0a && ch.code <= 0x0d) ||
                        (ch.code >= 0x1c && ch.code <= 0x1e) || ch.code == 0x85 ||
                        ch.code == 0x2028 || ch.code == 0x2029;
    size_t end = i + ch.length;
    if (breaks) {
      if (ch.code == '\r' && end < text.size() && text[end] == '\n') ++end;
      out.push_back(part(c, begin, keep ? end : i));
      begin = end;
    }
    i = end;
  }
  if (begin < text.size()) out.push_back(part(c, begin, text.size()));
  return c.heap().list(std::move(out));
}

Value string_affix(const Call& c) {
  const bool start = c.name == "startswith";
  const auto fits = [&](const Value& v) {
    const std::string& t = need_string(v, c.name).text;
    return start ? c.str().text.starts_with(t) : c.str().text.ends_with(t);
  };
  if (!c.args[0].is(Kind::kTuple)) return Value(fits(c.args[0]));
  return Value(std::any_of(c.args[0].list().items.begin(), c.args[0].list().items.end(), fits));
}

Value string_replace(const Call& c) {
  const Str &old = need_string(c.args[0], c.name), &fresh = need_string(c.args[1], c.name);
  int64_t left = integer_or(c.args[2], -1, c.name);
  spend_search(c.str().text, old.text);
  StrBuilder out;
  size_t done = 0;
  const size_t n = c.str().text.size();
  for (size_t i = 0; left != 0 && i <= n; --left) {
    const size_t at = c.str().text.find(old.text, i);
    if (at == std::string::npos) break;
    out.add(c.str(), done, at);
    out.add(fresh);
    done = at + old.text.size();
    i = done;
    if (old.text.empty()) {
      const size_t next = at < n ? at + unicode::decode(c.str().text.data() + at).length : n + 1;
      out.add(c.str(), done, std::min(next, n));
      done = std::min(next, n);
      i = next;
    }
    if (out.size() > (size_t{1} << 28)) fail("the result of replace is too long");
  }
  out.add(c.str(), done, n);
  return c.heap().string(out.take());
}

Value string_find(const Call& c) {
  const bool from_right = c.name == "rfind", must = c.name == "index";
  const std::string& what = need_string(c.args[0], c.name).text;
  spend_search(c.str().text, what);
  const size_t at = from_right ? c.str().text.rfind(what) : c.str().text.find(what);
  if (at == std::string::npos && must) fail("substring not found");
  return Value(at == std::string::npos ? int64_t{-1}
                                       : static_cast<int64_t>(count_chars(
                                             std::string_view(c.str().text).substr(0, at))));
}

Value string_join(const Call& c) {
  StrBuilder out;
  bool first = true;
  for (const Value& v : c.runtime.elements(c.args[0])) {
    if (!std::exchange(first, false)) out.add(c.str());
    out.add(need_string(v, c.name));
    if (out.size() > (size_t{1} << 28)) fail("the result of join is too long");
  }
  return c.heap().string(out.take());
}

// Formats fields {}, {0} and {name}, without format specifications.
Value string_format(const Call& c) {
  StrBuilder out;
  size_t next = 0;
  const std::string& t = c.str().text;
  for (size_t i = 0; i < t.size();) {
    if ((t[i] == '{' || t[i] == '}') && i + 1 < t.size() && t[i + 1] == t[i]) {
      out.add(c.str(), i, i + 1);
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
        if (index >= c.given.positional.size()) fail("format: argument {} is missing", field);
        v = c.given.positional[index];
      } else {
        const auto it = std::find_if(c.given.named.begin(), c.given.named.end(),
                                     [&](const auto& p) { return p.first == field; });
        if (it == c.given.named.end())
          fail("format: argument '{}' is missing", printable(field, 60));
        v = it->second;
      }
      write_str(v, out);
      i = end + 1;
    } else {
      const size_t n = unicode::decode(t.data() + i).length;
      out.add(c.str(), i, i + n);
      i += n;
    }
  }
  return c.heap().string(out.take());
}

Value string_title(const Call& c) {
  StrBuilder out;
  bool inside = false;
  for (size_t i = 0; i < c.str().text.size();) {
    const auto ch = unicode::decode(c.str().text.data() + i);
    const Str one = substr(c.str(), i, i + ch.length);
    const bool letter = (unicode::Table::get().mask(ch.code) & unicode::mask_of("Lu Ll Lt")) != 0;
    if (letter)
      out.add(changed_case(one, !inside));
    else
      out.add(one);
    inside = letter;
    i += ch.length;
  }
  return c.heap().string(out.take());
}

Value string_pad(const Call& c) {
  const bool left = c.name != "ljust";
  const int64_t width = integer_or(c.args[0], 0, c.name);
  if (width > (1 << 24)) fail("{}: a width of {} is too large", c.name, width);
  const Value space = c.heap().string(c.name == "zfill" ? "0" : " ");
  const Str& fill = c.args[1].is_undefined() ? space.str() : need_string(c.args[1], c.name);
  StrBuilder filling, out;
  for (auto n = static_cast<int64_t>(count_chars(c.str().text)); n < width; ++n) filling.add(fill);
  const bool sign =
      c.name == "zfill" && (c.str().text.starts_with('-') || c.str().text.starts_with('+'));
  out.add(c.str(), 0, sign ? 1 : 0);
  if (left) out.add(filling.get());
  out.add(c.str(), sign ? 1 : 0, c.str().text.size());
  if (!left) out.add(filling.get());
  return c.heap().string(out.take());
}

constexpr NamedBuiltin kStringMethods[] = {
    {Named::kString, "capitalize", string_capitalize},
    {Named::kString, "count", string_count, "text"},
    {Named::kString, "endswith startswith", string_affix, "text"},
    {Named::kString, "find index rfind", string_find, "text"},
    {Named::kString, "format", string_format},
    {Named::kString, "isdigit", string_isdigit},
    {Named::kString, "join", string_join, "items"},
    {Named::kString, "ljust rjust zfill", string_pad, "width fill"},
    {Named::kString, "lower upper",
     [](const Call& c) { return c.heap().string(changed_case(c.str(), c.name == "upper")); }},
    {Named::kString, "lstrip rstrip strip", string_strip, "chars"},
    {Named::kString, "replace", string_replace, "old new count"},
    {Named::kString, "rsplit split", string_split, "sep maxsplit"},
    {Named::kString, "splitlines", string_splitlines, "keepends"},
    {Named::kString, "title", string_title},
};

}  // namespace

std::span<const NamedBuiltin> string_names() { return kStringMethods; }

}  // namespace moebius::jinja
