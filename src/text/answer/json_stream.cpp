// SPDX-License-Identifier: Apache-2.0
#include "text/answer/json_stream.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "text/unicode.h"

namespace moebius {
namespace {

constexpr size_t kMostDepth = 64, kMostScalar = 400, kMostBareKey = 256;

bool digit(char c) { return c >= '0' && c <= '9'; }
bool hex_digit(char c) { return digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'f'); }

bool is_json_number(std::string_view s) {
  size_t i = 0;
  const auto digits = [&] {
    const size_t begin = i;
    while (i < s.size() && digit(s[i])) ++i;
    return i > begin;
  };
  if (i < s.size() && s[i] == '-') ++i;
  if (i < s.size() && s[i] == '0')
    ++i;
  else if (!digits())
    return false;
  if (i < s.size() && s[i] == '.') {
    ++i;
    if (!digits()) return false;
  }
  if (i < s.size() && (s[i] | 32) == 'e') {
    ++i;
    if (i < s.size() && (s[i] == '+' || s[i] == '-')) ++i;
    if (!digits()) return false;
  }
  return i == s.size();
}

}  // namespace

void append_json_text(std::string& out, std::string_view text) {
  for (const char c : text) {
    if (c == '"' || c == '\\')
      out += {'\\', c};
    else if (c == '\n')
      out += "\\n";
    else if (c == '\t')
      out += "\\t";
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
}

std::string json_string(std::string_view text) {
  std::string out = "\"";
  append_json_text(out, text);
  return out + '"';
}

std::optional<std::string> scalar_to_json(std::string_view s) {
  static constexpr std::pair<std::string_view, std::string_view> kWords[] = {
      {"true", "true"}, {"false", "false"}, {"null", "null"},
      {"True", "true"}, {"False", "false"}, {"None", "null"}};
  for (const auto& [word, json] : kWords)
    if (s == word) return std::string(json);
  if (is_json_number(s)) return std::string(s);
  return std::nullopt;
}

bool JsonStream::space(char c) {
  if (!is_json_space(c)) return false;
  if (step_ != &JsonStream::start && !bare()) held_ += c;
  return true;
}

JsonStream::Take JsonStream::start(char c, std::string& out) {
  if (root_ == Root::kObject && c != '{' && !is_json_space(c)) return Take::kBroken;
  return any_value(c, out);
}

JsonStream::Take JsonStream::any_value(char c, std::string& out) {
  return space(c) ? Take::kMore : value(c, out);
}

JsonStream::Take JsonStream::first_value(char c, std::string& out) {
  return c == ']' ? closing(c, out) : any_value(c, out);
}

JsonStream::Take JsonStream::first_key(char c, std::string& out) {
  return c == '}' ? closing(c, out) : key(c, out);
}

JsonStream::Take JsonStream::key(char c, std::string& out) {
  if (space(c)) return Take::kMore;
  if (bare()) {
    scalar_.clear();
    step_ = &JsonStream::bare_key;
    return put(c, out);
  }
  if (c != '"') return Take::kBroken;
  held_ += c;
  key_ = true;
  step_ = &JsonStream::string_byte;
  return Take::kMore;
}

JsonStream::Take JsonStream::colon(char c, std::string&) {
  if (space(c)) return Take::kMore;
  if (c != ':') return Take::kBroken;
  held_ += c;
  step_ = &JsonStream::any_value;
  return Take::kMore;
}

JsonStream::Take JsonStream::after(char c, std::string& out) {
  if (space(c)) return Take::kMore;
  const bool object = stack_.back() == '{';
  if (c != ',') return c == (object ? '}' : ']') ? closing(c, out) : Take::kBroken;
  held_ += c;
  step_ = !object  ? &JsonStream::any_value
          : bare() ? &JsonStream::first_key  // Gemma's objects may end with a comma
                   : &JsonStream::key;
  return Take::kMore;
}

JsonStream::Take JsonStream::closing(char c, std::string& out) {
  if (bare()) held_.clear();
  pass_held({&c, 1}, out);
  stack_.pop_back();
  return ended(Take::kWhole);
}

void JsonStream::pass_held(std::string_view text, std::string& out) {
  out += held_;
  out += text;
  held_.clear();
}

JsonStream::Take JsonStream::ended(Take at_root) {
  if (stack_.empty()) {
    step_ = &JsonStream::done;
    return at_root;
  }
  step_ = &JsonStream::after;
  return Take::kMore;
}

JsonStream::Take JsonStream::value(char c, std::string& out) {
  if (c == '{' || c == '[') {
    if (stack_.size() == kMostDepth) return Take::kBroken;
    stack_ += c;
    step_ = c == '{' ? &JsonStream::first_key : &JsonStream::first_value;
  } else if (bare()) {
    if (c == ',' || c == ']' || c == '}') return Take::kBroken;
    scalar_.clear();
    step_ = c == mark_[0] ? &JsonStream::mark_byte : &JsonStream::bare_scalar;
    return put(c, out);
  } else if (c == '"') {
    key_ = false;
    step_ = &JsonStream::string_byte;
  } else if (c == '-' || digit(c) || ((c | 32) >= 'a' && (c | 32) <= 'z')) {
    scalar_ = c;
    step_ = &JsonStream::scalar_byte;
    return Take::kMore;
  } else {
    return Take::kBroken;
  }
  pass_held({&c, 1}, out);
  return Take::kMore;
}

JsonStream::Take JsonStream::mark_byte(char c, std::string& out) {
  scalar_ += c;
  if (!mark_.starts_with(scalar_)) return Take::kBroken;
  if (scalar_ != mark_) return Take::kMore;
  scalar_.clear();
  pass_held("\"", out);
  step_ = &JsonStream::marked_byte;
  return Take::kMore;
}

JsonStream::Take JsonStream::marked_byte(char c, std::string& out) {
  scalar_ += c;
  const MarkerAt at = marker_at_end(scalar_, std::span(&mark_, 1));
  const size_t shown = scalar_.size() - at.bytes;
  append_json_text(out, std::string_view(scalar_).substr(0, shown));
  scalar_.erase(0, shown);
  if (at.marker == kNoMarker) return Take::kMore;
  out += '"';
  return ended(Take::kWhole);
}

JsonStream::Take JsonStream::bare_scalar(char c, std::string& out) {
  if (c != ',' && c != ']' && c != '}') {
    scalar_ += c;
    return Take::kMore;
  }
  const std::string_view text = without_spaces(scalar_);
  pass_held(scalar_to_json(text).value_or(json_string(text)), out);
  ended(Take::kMore);
  return put(c, out);
}

JsonStream::Take JsonStream::bare_key(char c, std::string&) {
  if (c != ':') {
    if (scalar_.size() == kMostBareKey) return Take::kBroken;
    scalar_ += c;
    return Take::kMore;
  }
  std::string_view text = without_spaces(scalar_);
  if (text.size() >= 2 * mark_.size() && text.starts_with(mark_) && text.ends_with(mark_))
    text = text.substr(mark_.size(), text.size() - 2 * mark_.size());
  if (text.empty()) return Take::kBroken;
  held_ += json_string(text) + ':';
  step_ = &JsonStream::any_value;
  return Take::kMore;
}

JsonStream::Take JsonStream::scalar_byte(char c, std::string& out) {
  const bool inside =
      digit(c) || c == '.' || c == '+' || c == '-' || ((c | 32) >= 'a' && (c | 32) <= 'z');
  if (inside) {
    if (scalar_.size() == kMostScalar) return Take::kBroken;
    scalar_ += c;
    return Take::kMore;
  }
  const auto json = scalar_to_json(scalar_);
  if (!json) return Take::kBroken;
  pass_held(*json, out);
  const Take root = ended(Take::kWholeBefore);
  return root == Take::kMore ? put(c, out) : root;
}

void JsonStream::string_text(std::string_view text, std::string& out) {
  (key_ ? held_ : out) += text;
}

// Writes the replacement for half of a surrogate pair without the other half.
void JsonStream::flush_surrogate(std::string& out) {
  if (!surrogate_.empty()) string_text("\\ufffd", out);
  surrogate_.clear();
}

JsonStream::Take JsonStream::string_byte(char c, std::string& out) {
  if (c == '\\') {
    escape_ = c;
    step_ = &JsonStream::escape_byte;
    return Take::kMore;
  }
  flush_surrogate(out);
  if (c != '"') {
    std::string text;
    if (static_cast<unsigned char>(c) < 0x20)
      append_json_text(text, {&c, 1});
    else
      text = c;
    string_text(text, out);
    return Take::kMore;
  }
  string_text("\"", out);
  if (key_) {
    step_ = &JsonStream::colon;
    return Take::kMore;
  }
  return ended(Take::kWhole);
}

JsonStream::Take JsonStream::escape_byte(char c, std::string& out) {
  step_ = &JsonStream::string_byte;
  if (c == 'u') {
    escape_ += c;
    step_ = &JsonStream::hex_byte;
    return Take::kMore;
  }
  flush_surrogate(out);
  if (std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos) {
    string_text(escape_ + c, out);
    return Take::kMore;
  }
  string_text("\\\\", out);  // not an escape: the backslash itself
  return string_byte(c, out);
}

JsonStream::Take JsonStream::hex_byte(char c, std::string& out) {
  if (!hex_digit(c)) {
    flush_surrogate(out);
    string_text("\\" + escape_, out);
    step_ = &JsonStream::string_byte;
    return string_byte(c, out);
  }
  escape_ += c;
  if (escape_.size() < 6) return Take::kMore;
  step_ = &JsonStream::string_byte;
  const unsigned code = static_cast<unsigned>(std::stoul(escape_.substr(2), nullptr, 16));
  const bool high = code >= 0xd800 && code < 0xdc00, low = code >= 0xdc00 && code < 0xe000;
  if (low && !surrogate_.empty()) {
    string_text(std::exchange(surrogate_, {}) + escape_, out);
    return Take::kMore;
  }
  flush_surrogate(out);
  if (high)
    surrogate_ = escape_;
  else
    string_text(low ? "\\ufffd" : escape_, out);
  return Take::kMore;
}

void JsonStream::close(std::string& out) {
  const bool in_string = step_ == &JsonStream::string_byte || step_ == &JsonStream::escape_byte ||
                         step_ == &JsonStream::hex_byte;
  if (in_string && !key_) {
    flush_surrogate(out);
    out += '"';
  }
  if (step_ == &JsonStream::marked_byte) out += json_string(scalar_).substr(1);
  if (step_ == &JsonStream::start && root_ == Root::kObject) out += "{}";
  held_.clear();
  for (; !stack_.empty(); stack_.pop_back()) out += stack_.back() == '{' ? '}' : ']';
  step_ = &JsonStream::done;
}

std::optional<std::string> json_value(std::string_view text) {
  JsonStream stream(JsonStream::Root::kAny);
  std::string out;
  // The space after the text ends a scalar.
  for (size_t i = 0; i <= text.size(); ++i) {
    const auto take = stream.put(i < text.size() ? text[i] : ' ', out);
    if (take == JsonStream::Take::kBroken) return std::nullopt;
    if (take == JsonStream::Take::kMore) continue;
    const size_t end = std::min(take == JsonStream::Take::kWhole ? i + 1 : i, text.size());
    if (text.find_first_not_of(kJsonSpaces, end) != text.npos) return std::nullopt;
    return out;
  }
  return std::nullopt;
}

bool PythonString::put(char c, std::string& out) {
  if (!escape_.empty() && escape_byte(c, out)) return true;
  if (c == '\\') {
    escape_ = c;
    return true;
  }
  if (c == quote_) {
    text("", out);
    return false;
  }
  text({&c, 1}, out);
  return true;
}

bool PythonString::escape_byte(char c, std::string& out) {
  const auto octal = [](char d) { return d >= '0' && d <= '7'; };
  const auto value = [&](size_t from, int base) {
    return static_cast<uint32_t>(std::stoul(escape_.substr(from), nullptr, base));
  };
  if (escape_.size() == 1) {
    if (std::string_view("xuU").find(c) != std::string_view::npos || octal(c)) {
      escape_ += c;
      return true;
    }
    escape_.clear();
    constexpr std::string_view kNames = "abfnrtv\\'\"", kBytes = "\a\b\f\n\r\t\v\\'\"";
    if (const size_t at = kNames.find(c); at != kNames.npos)
      text(kBytes.substr(at, 1), out);
    else if (c == '/' && quote_ == '"')
      text("/", out);
    else if (c != '\n')  // a backslash before a line feed continues the line
      text(std::string("\\") + c, out);
    return true;
  }
  if (octal(escape_[1])) {
    const bool more = octal(c) && escape_.size() < 4;
    if (more) escape_ += c;
    if (more && escape_.size() < 4) return true;
    code(value(1, 8), out);
    escape_.clear();
    return more;
  }
  const size_t digits = escape_[1] == 'x' ? 2 : escape_[1] == 'u' ? 4 : 8;
  if (!hex_digit(c)) {
    text(std::exchange(escape_, {}), out);
    return false;
  }
  escape_ += c;
  if (escape_.size() == 2 + digits) {
    code(value(2, 16), out);
    escape_.clear();
  }
  return true;
}

void PythonString::code(uint32_t code, std::string& out) {
  if (code >= 0xdc00 && code < 0xe000 && surrogate_ != 0)
    code = 0x10000 + ((std::exchange(surrogate_, 0) - 0xd800) << 10) + (code - 0xdc00);
  text("", out);
  if (code >= 0xd800 && code < 0xdc00) {
    surrogate_ = code;
    return;
  }
  std::string utf8;
  unicode::append(utf8, code > 0x10ffff || (code >= 0xdc00 && code < 0xe000) ? 0xfffd : code);
  text(utf8, out);
}

void PythonString::text(std::string_view text, std::string& out) {
  if (std::exchange(surrogate_, 0) != 0) out += "\\ufffd";
  append_json_text(out, text);
}

namespace {

// Reads Python's literals. Depth is bounded, so the reader may recurse.
class PythonReader {
 public:
  explicit PythonReader(std::string_view text) : text_(text) {}
  std::optional<std::string> read() {
    std::string out;
    if (!value(out, 0)) return std::nullopt;
    space();
    return at_ == text_.size() ? std::optional(out) : std::nullopt;
  }

 private:
  static constexpr size_t kDepth = 32;
  void space() {
    while (at_ < text_.size() && is_json_space(text_[at_])) ++at_;
  }
  bool next(char c) {
    space();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool value(std::string& out, size_t depth) {
    space();
    if (at_ == text_.size() || depth == kDepth) return false;
    const char c = text_[at_];
    if (c == '\'' || c == '"') return string(out);
    if (c == '[') return list('[', ']', out, depth);
    if (c == '(') return list('(', ')', out, depth);
    if (c == '{') return object(out, depth);
    const size_t begin = at_;
    while (at_ < text_.size() && std::string_view(",]})").find(text_[at_]) == text_.npos &&
           !is_json_space(text_[at_]))
      ++at_;
    const auto json = scalar_to_json(text_.substr(begin, at_ - begin));
    if (json) out += *json;
    return json.has_value();
  }
  bool string(std::string& out) {
    PythonString body(text_[at_++]);
    out += '"';
    while (at_ < text_.size())
      if (!body.put(text_[at_++], out)) {
        out += '"';
        return true;
      }
    return false;
  }
  bool list(char open, char close, std::string& out, size_t depth) {
    next(open);
    out += '[';
    for (bool first = true; !next(close); first = false) {
      if (!first && !next(',')) return false;
      if (!first && next(close)) break;
      if (!first) out += ',';
      if (!value(out, depth + 1)) return false;
    }
    out += ']';
    return true;
  }
  bool object(std::string& out, size_t depth) {
    next('{');
    out += '{';
    for (bool first = true; !next('}'); first = false) {
      if (!first && !next(',')) return false;
      if (!first && next('}')) break;
      if (!first) out += ',';
      space();
      if (at_ == text_.size() || (text_[at_] != '\'' && text_[at_] != '"') || !string(out) ||
          !next(':'))
        return false;
      out += ':';
      if (!value(out, depth + 1)) return false;
    }
    out += '}';
    return true;
  }
  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::string> python_to_json(std::string_view text) {
  return PythonReader(text).read();
}

}  // namespace moebius
