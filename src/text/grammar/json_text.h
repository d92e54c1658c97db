// SPDX-License-Identifier: Apache-2.0
// Makes automata for JSON strings, numbers and white space.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/grammar/dfa.h"

namespace moebius {

// Returns text as a JSON string with only the necessary escapes: the one form in which strings of a
// schema are written.
std::string quoted_plainly(std::string_view text);
// Returns JSON without white space, strings by quoted_plainly.
std::string compact_json(const Json& value);

// --- automata that all grammars share; strings include their quotes ---
DfaPtr any_json_string();    // accepts strings with all escapes
DfaPtr plain_json_string();  // accepts strings with necessary escapes only
DfaPtr plain_json_body();    // accepts what plain_json_string() does, without quotes
DfaPtr any_json_number();
DfaPtr any_json_integer();
DfaPtr json_gap();          // accepts "", " ", or a line feed and at most 40 spaces or tabs
DfaPtr json_gap_brace();    // accepts a gap followed by "}"
DfaPtr json_gap_bracket();  // accepts a gap followed by "]"

// Returns the regular expression for a whole string of this "format"; empty if the format is not
// enforced.
std::string_view format_expression(std::string_view name);

// Holds a number by its digits, +-whole.fraction, without outer zeros.
struct Decimal {
  bool negative = false;
  std::string whole, fraction;
  bool zero() const { return whole.empty() && fraction.empty(); }
};
Decimal decimal_of(const Json& number);
int compare(const Decimal& a, const Decimal& b);

struct NumberBound {
  Decimal value;
  bool exclusive = false;
};
struct NumberRules {
  bool integer = false;
  std::optional<NumberBound> low, high;
  uint32_t multiple = 0;                    // only multiples of this integer; 0: all numbers
  std::optional<uint32_t> fraction_digits;  // most digits after the point; none: no limit
  bool any() const { return !low && !high && multiple == 0 && !fraction_digits; }
};
DfaPtr number_dfa(const NumberRules& rules, GrammarBudget& budget);

}  // namespace moebius
