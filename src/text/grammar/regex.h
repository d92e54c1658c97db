// SPDX-License-Identifier: Apache-2.0
// Compiles untrusted regular expressions to automata over bytes: ECMAScript's syntax without
// lookaround, back references and word boundaries. Nothing recurses on the text, and all work is
// counted.
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
  kPlain,  // the text is UTF-8
  kJson,  // the text is what stands between the quotes of a JSON string, with necessary escapes only
};

struct RegexOptions {
  RegexBytes bytes = RegexBytes::kPlain;
  // true: the expression may match anywhere in the text; false: the whole text
  bool search = false;
};

// Least and most numbers of code points of the texts that match.
struct RegexLengths {
  size_t least = 0;
  std::optional<size_t> most = 0;  // most code points; unset: unlimited
};

struct ParsedRegex;
using ParsedRegexPtr = std::shared_ptr<const ParsedRegex>;

// Parses an expression. Throws GrammarError: invalid_regex, unsupported_keyword,
// schema_too_complex.
ParsedRegexPtr parse_regex(std::string_view text, GrammarBudget& budget);
DfaPtr regex_dfa(const ParsedRegex& regex, const RegexOptions& options, GrammarBudget& budget);
DfaPtr regex_dfa(std::string_view text, const RegexOptions& options, GrammarBudget& budget);
// Returns lengths of the whole text, if the expression is anchored at both ends (^ and $ around all
// of it).
std::optional<RegexLengths> anchored_lengths(const ParsedRegex& regex);

// Holds a set of code points as ascending ranges that do not touch.
using CodeRange = std::pair<char32_t, char32_t>;
struct CodeSet {
  std::vector<CodeRange> ranges;
  void add(char32_t low, char32_t high) { ranges.emplace_back(low, high); }
  void tidy();
  CodeSet others() const;  // returns all code points that are not in the set
};

struct ParsedRegex {
  enum class Kind : uint8_t { kEmpty, kSet, kSequence, kChoice, kRepeat, kBegin, kEnd };
  struct Node {
    Kind kind = Kind::kEmpty;
    // Indices of the parts of a sequence or a choice; a repeat has one.
    std::vector<uint32_t> parts = {};
    uint32_t set = 0;
    uint32_t least = 0, most = 0;  // bounds of a repeat; most: or kNoEnd
  };
  static constexpr uint32_t kNoEnd = UINT32_MAX;
  // All nodes; parts precede the nodes to which they belong, and the last node is the whole
  // expression.
  std::vector<Node> nodes;
  std::vector<CodeSet> sets;
};

}  // namespace moebius
