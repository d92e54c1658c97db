// SPDX-License-Identifier: Apache-2.0
// Implements literal and general patterns, and the walk over all matches.
#include "text/pattern.h"

#include "text/json_fields.h"
#include "text/unicode.h"

namespace moebius {

PatternPtr make_literal_pattern(std::string literal) {
  const auto search = [literal = std::move(literal)](std::string_view text, size_t from,
                                                     size_t& begin, size_t& end) {
    if (literal.empty()) return false;
    begin = text.find(literal, from);
    end = begin + literal.size();
    return begin != std::string_view::npos;
  };
  return std::make_shared<Pattern>(Pattern{search});
}

PatternPtr make_character_pattern(bool (*is)(char32_t)) {
  const auto search = [is](std::string_view text, size_t from, size_t& begin, size_t& end) {
    for (begin = from; begin < text.size(); begin = end) {
      const auto c = unicode::decode(text.data() + begin);
      end = begin + c.length;
      if (is(c.code)) return true;
    }
    return false;
  };
  return std::make_shared<Pattern>(Pattern{search});
}

PatternPtr make_regex_pattern(std::string_view regex, const std::string& where) {
  if (PatternPtr known = find_known_pattern(regex)) return known;
  const auto search = [engine = OnigPattern(regex, where)](std::string_view text, size_t from,
                                                           size_t& begin, size_t& end) {
    return engine.search(text, from, begin, end);
  };
  return std::make_shared<Pattern>(Pattern{search});
}

PatternPtr parse_pattern(const Json& json, const std::string& where) {
  if (has_value(json, "String")) return make_literal_pattern(string_field(json, "String", where));
  if (has_value(json, "Regex"))
    return make_regex_pattern(string_field(json, "Regex", where), where);
  fail("{} needs a member \"String\" or \"Regex\"", where);
}

std::string with_matches_replaced(const Pattern& pattern, std::string_view text,
                                  std::string_view content) {
  std::string out;
  out.reserve(text.size() + text.size() / 4);
  Matches matches(pattern, text);
  size_t done = 0, begin = 0, end = 0;
  for (; matches.next(begin, end); done = end) {
    out += text.substr(done, begin - done);
    out += content;
  }
  return out += text.substr(done);
}

bool Matches::next(size_t& begin, size_t& end) {
  while (from_ <= text_.size() && pattern_.search(text_, from_, begin, end)) {
    if (begin == end && last_end_ == end) {
      from_ += from_ < text_.size() ? unicode::decode(text_.data() + from_).length : 1;
      continue;
    }
    from_ = end;
    last_end_ = end;
    return true;
  }
  return false;
}

}  // namespace moebius
