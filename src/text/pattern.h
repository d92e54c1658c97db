// SPDX-License-Identifier: Apache-2.0
// Patterns of tokenizer files: a literal, a regular expression, or a hand-written scanner for an
// expression that is known letter by letter. All find the same thing: the next match at or after a
// position.
#pragma once
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/oniguruma.h"

namespace moebius {

class Pattern {
 public:
  virtual ~Pattern() = default;
  // First match at or after byte `from` (<= size) of valid UTF-8. Thread-safe. May throw Error
  // (limits of the engine).
  virtual bool search(std::string_view text, size_t from, size_t& begin, size_t& end) const = 0;
};

// An empty literal matches nothing.
std::unique_ptr<Pattern> make_literal_pattern(std::string literal);
// A scanner where the expression is a known one, else the general engine.
std::unique_ptr<Pattern> make_regex_pattern(std::string_view regex, const std::string& where);
// {"String": "..."} or {"Regex": "..."}, the spelling of tokenizer.json.
std::unique_ptr<Pattern> parse_pattern(const Json& json, const std::string& where);

// The hand-written scanner for exactly this expression, or null.
std::unique_ptr<Pattern> find_known_pattern(std::string_view regex);
// The expression a byte-level pre-tokenizer uses by itself.
extern const std::string_view kByteLevelRegex;

// All matches in turn. An empty match right after the previous match is skipped.
class Matches {
 public:
  Matches(const Pattern& pattern, std::string_view text)
      : pattern_(pattern), text_(text), budget_(text.size()) {}
  bool next(size_t& begin, size_t& end);

 private:
  const Pattern& pattern_;
  std::string_view text_;
  TextBudget budget_;  // of all searches together
  size_t from_ = 0;
  std::optional<size_t> last_end_;
};

}  // namespace moebius
