// SPDX-License-Identifier: Apache-2.0
// Implements literal and general patterns, and the walk over all matches.
#include "text/pattern.h"

#include "text/json_fields.h"
#include "text/unicode.h"

namespace moebius {
namespace {

class Literal final : public Pattern {
 public:
  explicit Literal(std::string text) : text_(std::move(text)) {}
  bool search(std::string_view text, size_t from, size_t& begin, size_t& end) const override {
    if (text_.empty()) return false;
    begin = text.find(text_, from);
    end = begin + text_.size();
    return begin != std::string_view::npos;
  }

 private:
  std::string text_;
};

class General final : public Pattern {
 public:
  General(std::string_view regex, const std::string& where) : regex_(regex, where) {}
  bool search(std::string_view text, size_t from, size_t& begin, size_t& end) const override {
    return regex_.search(text, from, begin, end);
  }

 private:
  OnigPattern regex_;
};

}  // namespace

std::unique_ptr<Pattern> make_literal_pattern(std::string literal) {
  return std::make_unique<Literal>(std::move(literal));
}

std::unique_ptr<Pattern> make_regex_pattern(std::string_view regex, const std::string& where) {
  if (auto known = find_known_pattern(regex)) return known;
  return std::make_unique<General>(regex, where);
}

std::unique_ptr<Pattern> parse_pattern(const Json& json, const std::string& where) {
  if (has_value(json, "String")) return make_literal_pattern(string_field(json, "String", where));
  if (has_value(json, "Regex"))
    return make_regex_pattern(string_field(json, "Regex", where), where);
  fail("{} needs a member \"String\" or \"Regex\"", where);
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
