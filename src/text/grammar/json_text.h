// SPDX-License-Identifier: Apache-2.0
// Automata for the words of JSON: strings, numbers, white space.
#pragma once
#include <optional>
#include <string>
#include <string_view>

#include "base/json.h"
#include "text/grammar/dfa.h"

namespace moebius {

// With its quotes and those escapes only that must be: the one form in which strings that a schema
// names are written.
std::string quoted_plainly(std::string_view text);
std::string compact_json(const Json& value);  // without white space, strings as above

// Automata that every grammar shares. Strings with their quotes.
DfaPtr any_json_string();    // every escape
DfaPtr plain_json_string();  // only escapes that must be
DfaPtr plain_json_body();    // the same without its quotes
DfaPtr any_json_number();
DfaPtr any_json_integer();
DfaPtr json_gap();          // "", " ", or a line feed and at most 40 spaces or tabs
DfaPtr json_gap_brace();    // with "}" behind
DfaPtr json_gap_bracket();  // with "]"

// The expression of a format that is kept, for all of a string; empty: not known.
std::string_view format_expression(std::string_view name);

// A number as its digits: +-whole.fraction, without zeros at the outer ends.
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
  uint32_t multiple = 0;                    // of this integer; 0: of any
  std::optional<uint32_t> fraction_digits;  // at most
  bool any() const { return !low && !high && multiple == 0 && !fraction_digits; }
};
DfaPtr number_dfa(const NumberRules& rules, GrammarBudget& budget);

}  // namespace moebius
