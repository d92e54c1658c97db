// SPDX-License-Identifier: Apache-2.0
// Regular expressions of strangers as automata over bytes: ECMAScript's forms without lookaround,
// back references and word boundaries. Nothing here recurses on the text, and all work is counted.
#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/grammar/dfa.h"

namespace moebius {

enum class RegexBytes : uint8_t {
  kPlain,  // UTF-8
  kJson,   // as between the quotes of a JSON string, with those escapes only that must be
};

struct RegexOptions {
  RegexBytes bytes = RegexBytes::kPlain;
  bool search = false;  // the expression may stand anywhere in the text; else it is all of it
};

// How many code points a text of the expression has.
struct RegexLengths {
  size_t least = 0;
  std::optional<size_t> most = 0;  // nothing: without end
};

struct ParsedRegex;
using ParsedRegexPtr = std::shared_ptr<const ParsedRegex>;

// Throws GrammarError: invalid_regex, unsupported_keyword, schema_too_complex.
ParsedRegexPtr parse_regex(std::string_view text, GrammarBudget& budget);
DfaPtr regex_dfa(const ParsedRegex& regex, const RegexOptions& options, GrammarBudget& budget);
DfaPtr regex_dfa(std::string_view text, const RegexOptions& options, GrammarBudget& budget);
// Of the whole text, where the expression has its end at both ends (^ and $ around it all).
std::optional<RegexLengths> anchored_lengths(const ParsedRegex& regex);

// Sets of code points: ranges that ascend and do not touch.
using CodeRange = std::pair<char32_t, char32_t>;
struct CodeSet {
  std::vector<CodeRange> ranges;
  void add(char32_t low, char32_t high) { ranges.emplace_back(low, high); }
  void tidy();
  CodeSet others() const;  // all code points that are not in it
};

struct ParsedRegex {
  enum class Kind : uint8_t { kEmpty, kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  struct Node {
    Kind kind = Kind::kEmpty;
    std::vector<uint32_t> parts;  // of sequences and choices; of a repeat, one
    uint32_t set = 0;
    uint32_t least = 0, most = 0;  // most: kNoEnd
  };
  static constexpr uint32_t kNoEnd = UINT32_MAX;
  std::vector<Node> nodes;  // parts come before what they are part of; the last is all
  std::vector<CodeSet> sets;
};

}  // namespace moebius
