// SPDX-License-Identifier: Apache-2.0
// Patterns of tokenizer files: a literal, a regular expression, or a hand-written scanner for a
// known expression. All find the next match at or after a position.
#pragma once
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/oniguruma.h"

namespace moebius {

struct Pattern {
  // Finds the first match at or after byte `from` (<= size) of valid UTF-8, or returns false.
  // Thread-safe. May throw Error if the engine's limits are reached.
  std::function<bool(std::string_view text, size_t from, size_t& begin, size_t& end)> search;
};
using PatternPtr = std::shared_ptr<const Pattern>;

// Makes a pattern for a literal; an empty one matches nothing.
PatternPtr make_literal_pattern(std::string literal);
// Makes a pattern that matches each single character for which `is` returns true.
PatternPtr make_character_pattern(bool (*is)(char32_t code));
// Makes a scanner if the expression is a known one, else a pattern of the regular expression
// engine.
PatternPtr make_regex_pattern(std::string_view regex, const std::string& where);
// Parses {"String": "..."} or {"Regex": "..."}, the notation of tokenizer.json.
PatternPtr parse_pattern(const Json& json, const std::string& where);

// Returns the hand-written scanner for exactly this expression, or null.
PatternPtr find_known_pattern(std::string_view regex);
// The regular expression that byte-level pre-tokenizers use if the file names none.
extern const std::string_view kByteLevelRegex;

// Returns the text with `content` in place of every match.
std::string with_matches_replaced(const Pattern& pattern, std::string_view text,
                                  std::string_view content);

// Iterates over all matches. An empty match directly after the previous match is skipped.
class Matches {
 public:
  Matches(const Pattern& pattern, std::string_view text)
      : pattern_(pattern), text_(text), budget_(text.size()) {}
  bool next(size_t& begin, size_t& end);

 private:
  const Pattern& pattern_;
  std::string_view text_;
  TextBudget budget_;  // limits the work of all searches together
  size_t from_ = 0;
  std::optional<size_t> last_end_;
};

}  // namespace moebius
