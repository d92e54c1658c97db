// SPDX-License-Identifier: Apache-2.0
// Cuts a template into tokens: text up to {{, {% or {#, and inside tags the tokens of Jinja
// expressions.
#include "text/jinja/lexer.h"

#include <algorithm>

#include "base/error.h"
#include "text/unicode.h"

namespace moebius::jinja {
namespace {

constexpr size_t kMaxTokens = 1u << 20;

bool space_byte(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
bool name_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool digit(char c) { return c >= '0' && c <= '9'; }

// Converts line breaks to
// and drops one at the very end.
std::string with_plain_breaks(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      out += '\n';
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
    } else {
      out += source[i];
    }
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(std::string_view source, const std::string& name)
      : source_(with_plain_breaks(source)), name_(name) {}
  std::vector<Token> run();

 private:
  SourcePosition place(size_t at);
  void add(Token::Kind kind, std::string text, size_t at);
  size_t text_end(size_t begin, size_t tag, char sign, bool variable) const;
  size_t after_close(size_t at, std::string_view close, bool trims) const;
  bool raw_block(size_t tag, size_t text_begin);
  void comment(size_t tag);
  void inside(std::string_view close, bool block);
  void string_token(size_t at);
  void number_token(size_t at);
  void escape(size_t& i, std::string& out, size_t at);
  char sign_after(size_t tag) const {
    const char c = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    return c == '-' || c == '+' ? c : '\0';
  }
  [[noreturn]] void fail_here(size_t at, const std::string& message) {
    fail_at(name_, place(at), message);
  }
  void go_on_after(size_t tag_end) {
    pos_ = tag_end;
    line_starting_ = source_[tag_end - 1] == '\n';
  }
  bool starts(size_t at, std::string_view what) const {
    return std::string_view(source_).substr(at).starts_with(what);
  }

  std::string source_;
  const std::string& name_;
  std::vector<Token> tokens_;
  size_t pos_ = 0;
  bool line_starting_ = true;
  size_t place_pos_ = 0;  // places are requested in ascending order
  SourcePosition place_;
};

SourcePosition Lexer::place(size_t at) {
  if (at < place_pos_) {
    place_pos_ = 0;
    place_ = {};
  }
  for (; place_pos_ < at; ++place_pos_) {
    const char c = source_[place_pos_];
    if (c == '\n') {
      ++place_.line;
      place_.column = 1;
    } else if ((static_cast<unsigned char>(c) & 0xc0) != 0x80) {
      ++place_.column;
    }
  }
  return place_;
}

void Lexer::add(Token::Kind kind, std::string text, size_t at) {
  if (tokens_.size() >= kMaxTokens) fail_here(at, "the template is too long");
  tokens_.push_back({kind, std::move(text), place(at)});
}

// Returns where the text before a tag ends, after the tag's sign and lstrip_blocks removed white
// space.
size_t Lexer::text_end(size_t begin, size_t tag, char sign, bool variable) const {
  size_t end = tag;
  if (sign == '-') {
    while (end > begin) {
      const auto c = unicode::decode_before(source_, end);
      if (!unicode::Table::get().is_space(c.code) && !(c.code >= 0x1c && c.code <= 0x1f)) break;
      end -= c.length;
    }
    return end;
  }
  if (sign == '+' || variable) return end;
  size_t line = end;
  while (line > begin && source_[line - 1] != '\n') --line;
  if (line == begin && !line_starting_) return end;
  for (size_t i = line; i < end; ++i)
    if (!space_byte(source_[i])) return end;
  return line;
}

// Returns the position after a closing sign at `at` ("-%}" removes the following white space, "%}"
// one line break), or npos if there is none.
size_t Lexer::after_close(size_t at, std::string_view close, bool trims) const {
  if (trims && starts(at, "+") && starts(at + 1, close)) return at + 1 + close.size();
  if (starts(at, "-") && starts(at + 1, close)) {
    size_t end = at + 1 + close.size();
    while (end < source_.size()) {
      const auto c = unicode::decode(source_.data() + end);
      if (!unicode::Table::get().is_space(c.code)) break;
      end += c.length;
    }
    return end;
  }
  if (!starts(at, close)) return std::string::npos;
  const size_t end = at + close.size();
  return trims && starts(end, "\n") ? end + 1 : end;
}

// Reads {% raw %}...{% endraw %} at `tag`; returns false if there is none.
bool Lexer::raw_block(size_t tag, size_t text_begin) {
  const auto skip_spaces = [&](size_t i) {
    while (i < source_.size() && space_byte(source_[i])) ++i;
    return i;
  };
  const char sign = sign_after(tag);
  size_t at = skip_spaces(tag + 2 + (sign ? 1 : 0));
  if (!starts(at, "raw")) return false;
  at = skip_spaces(at + 3);
  if (!starts(at, "%}") && !starts(at, "-%}")) return false;
  const size_t before = text_end(text_begin, tag, sign, /*variable=*/false);
  if (before > text_begin)
    add(Token::Kind::kText, source_.substr(text_begin, before - text_begin), text_begin);
  const size_t body = after_close(at, "%}", /*trims=*/false);
  line_starting_ = source_[body - 1] == '\n';
  for (size_t end_tag = source_.find("{%", body); end_tag != std::string::npos;
       end_tag = source_.find("{%", end_tag + 2)) {
    const char end_sign = sign_after(end_tag);
    size_t close = skip_spaces(end_tag + 2 + (end_sign ? 1 : 0));
    if (!starts(close, "endraw")) continue;
    close = skip_spaces(close + 6);
    const size_t after = after_close(close, "%}", /*trims=*/true);
    if (after == std::string::npos) continue;
    const size_t text = text_end(body, end_tag, end_sign, /*variable=*/false);
    if (text > body) add(Token::Kind::kText, source_.substr(body, text - body), body);
    go_on_after(after);
    return true;
  }
  fail_here(tag, "raw block without endraw");
}

void Lexer::comment(size_t tag) {
  for (size_t i = tag + 2; i < source_.size(); ++i) {
    if (source_[i] != '#' && source_[i] != '-' && source_[i] != '+') continue;
    const size_t after = after_close(i, "#}", /*trims=*/true);
    if (after == std::string::npos) continue;
    return go_on_after(after);
  }
  fail_here(tag, "comment without its end '#}'");
}

void Lexer::escape(size_t& i, std::string& out, size_t at) {
  const char c = source_[i++];
  static constexpr std::string_view kFrom = "abfnrtv\\'\"", kTo = "\a\b\f\n\r\t\v\\'\"";
  if (const size_t k = kFrom.find(c); k != std::string_view::npos) {
    out += kTo[k];
    return;
  }
  if (c == '\n') return;
  const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  uint32_t code = 0;
  if (digits > 0) {
    for (int k = 0; k < digits; ++k, ++i) {
      const char h = i < source_.size() ? source_[i] : '\0';
      const int v = digit(h)               ? h - '0'
                    : h >= 'a' && h <= 'f' ? h - 'a' + 10
                    : h >= 'A' && h <= 'F' ? h - 'A' + 10
                                           : -1;
      if (v < 0) fail_here(at, fmt::format("incomplete escape \\{} in a string", c));
      code = code * 16 + static_cast<uint32_t>(v);
    }
    if (code > 0x10ffff || (code >= 0xd800 && code < 0xe000))
      fail_here(at, "an escape in a string is not a character");
    unicode::append(out, code);
  } else if (c >= '0' && c <= '7') {
    code = static_cast<uint32_t>(c - '0');
    for (int k = 0; k < 2 && i < source_.size() && source_[i] >= '0' && source_[i] <= '7'; ++k)
      code = code * 8 + static_cast<uint32_t>(source_[i++] - '0');
    unicode::append(out, code);
  } else if (c == 'N') {
    fail_here(at, "named characters (\\N{...}) are not supported");
  } else {
    out += '\\';
    --i;
    const auto d = unicode::decode(source_.data() + i);
    out.append(source_, i, d.length);
    i += d.length;
  }
}

void Lexer::string_token(size_t at) {
  const char quote = source_[at];
  std::string out;
  size_t i = at + 1;
  while (i < source_.size() && source_[i] != quote) {
    if (source_[i] != '\\') {
      out += source_[i++];
      continue;
    }
    if (++i >= source_.size()) break;
    escape(i, out, at);
  }
  if (i >= source_.size()) fail_here(at, "string without its closing quote");
  add(Token::Kind::kString, std::move(out), at);
  pos_ = i + 1;
}

void Lexer::number_token(size_t at) {
  size_t i = at;
  std::string digits;
  bool is_float = false;
  const auto take = [&] {
    while (i < source_.size() &&
           (digit(source_[i]) ||
            (source_[i] == '_' && i + 1 < source_.size() && digit(source_[i + 1])))) {
      if (source_[i] != '_') digits += source_[i];
      ++i;
    }
  };
  const auto digit_at = [&](size_t k) { return k < source_.size() && digit(source_[k]); };
  take();
  if (starts(i, ".") && digit_at(i + 1)) {
    is_float = true;
    digits += '.';
    ++i;
    take();
  }
  if (i < source_.size() && (source_[i] == 'e' || source_[i] == 'E')) {
    const size_t sign =
        i + 1 < source_.size() && (source_[i + 1] == '+' || source_[i + 1] == '-') ? 1 : 0;
    if (digit_at(i + 1 + sign)) {
      is_float = true;
      digits += source_.substr(i, 1 + sign);
      i += 1 + sign;
      take();
    }
  }
  if (i < source_.size() && name_start(source_[i])) fail_here(at, "a number runs into a name");
  if (!is_float && digits.size() > 1 && digits[0] == '0' &&
      digits.find_first_not_of('0') != std::string::npos)
    fail_here(at, "a number with leading zeros");
  add(is_float ? Token::Kind::kFloat : Token::Kind::kInteger, digits, at);
  pos_ = i;
}

// Reads tokens up to the closing sign. A sign inside brackets does not close, as in {{ {'a': {}}
// }}.
void Lexer::inside(std::string_view close, bool block) {
  static constexpr std::string_view kOperators[] = {
      "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<",
      ">",  "=",  "(",  ")",  "[",  "]",  "{", "}", ".", ",", ":", "|", ";"};
  const size_t opened = pos_;
  std::string brackets;
  while (pos_ < source_.size()) {
    const size_t at = pos_;
    if (brackets.empty()) {
      if (const size_t after = after_close(at, close, block); after != std::string::npos) {
        add(block ? Token::Kind::kBlockEnd : Token::Kind::kVariableEnd, "", at);
        return go_on_after(after);
      }
    }
    const char c = source_[at];
    if (space_byte(c)) {
      ++pos_;
    } else if (c == '"' || c == '\'') {
      string_token(at);
    } else if (digit(c)) {
      number_token(at);
    } else if (name_start(c)) {
      while (pos_ < source_.size() && (name_start(source_[pos_]) || digit(source_[pos_]))) ++pos_;
      add(Token::Kind::kName, source_.substr(at, pos_ - at), at);
    } else {
      const auto* op = std::find_if(std::begin(kOperators), std::end(kOperators),
                                    [&](std::string_view o) { return starts(at, o); });
      if (op == std::end(kOperators))
        fail_here(at, fmt::format("unexpected character '{}'",
                                  printable(source_.substr(
                                      at, unicode::decode(source_.data() + at).length))));
      if (c == '(' || c == '[' || c == '{') brackets += c == '(' ? ')' : c == '[' ? ']' : '}';
      if (c == ')' || c == ']' || c == '}') {
        if (brackets.empty() || brackets.back() != c)
          fail_here(at, fmt::format("unexpected '{}'", c));
        brackets.pop_back();
      }
      add(Token::Kind::kOperator, std::string(*op), at);
      pos_ += op->size();
    }
  }
  fail_here(opened, fmt::format("tag without its end '{}'", close));
}

std::vector<Token> Lexer::run() {
  while (pos_ < source_.size()) {
    const size_t begin = pos_;
    size_t tag = begin;
    for (;; ++tag) {
      tag = source_.find('{', tag);
      if (tag == std::string::npos || tag + 1 >= source_.size()) {
        tag = std::string::npos;
        break;
      }
      if (const char c = source_[tag + 1]; c == '{' || c == '%' || c == '#') break;
    }
    if (tag == std::string::npos) {
      add(Token::Kind::kText, source_.substr(begin), begin);
      break;
    }
    const char kind = source_[tag + 1];
    if (kind == '%' && raw_block(tag, begin)) continue;
    const char sign = sign_after(tag);
    const size_t end = text_end(begin, tag, sign, kind == '{');
    if (end > begin) add(Token::Kind::kText, source_.substr(begin, end - begin), begin);
    if (kind == '#') {
      comment(tag);
      continue;
    }
    add(kind == '{' ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin, "", tag);
    pos_ = tag + 2 + (sign ? 1 : 0);
    inside(kind == '{' ? "}}" : "%}", kind == '%');
  }
  add(Token::Kind::kEnd, "", source_.size());
  return std::move(tokens_);
}

}  // namespace

void fail_at(const std::string& name, SourcePosition place, const std::string& message) {
  fail("{}, line {}, column {}: {}", name, place.line, place.column, message);
}

std::vector<Token> tokenize(std::string_view source, const std::string& name) {
  return Lexer(source, name).run();
}

}  // namespace moebius::jinja
