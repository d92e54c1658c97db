// SPDX-License-Identifier: Apache-2.0
#include "text/grammar/json_text.h"

#include <fmt/core.h>

#include <algorithm>
#include <tuple>

#include "text/grammar/regex.h"

namespace moebius {
namespace {

// clang-format off
#define HEX "[0-9a-fA-F]"
#define LABEL "[A-Za-z0-9](-?[A-Za-z0-9]){0,30}"
#define HOST LABEL "(\\." LABEL "){0,3}"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define YEAR "(000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
#define LEAP "((0[48]|[2468][048]|[13579][26])00|[0-9][0-9](0[48]|[2468][048]|[13579][26]))"
#define DATE "(" YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))|" LEAP "-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,9})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define H16 HEX "{1,4}"
#define DIGITS "[0-9]{1,9}"
#define PCHAR "([A-Za-z0-9._~!$&'()*+,;=:@-]|%" HEX HEX ")"
#define ATOM "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]{1,20}"

struct KnownFormat {
  std::string_view name, expression;
};
constexpr KnownFormat kFormats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(" DIGITS "W|(" DIGITS "Y(" DIGITS "M(" DIGITS "D)?)?|" DIGITS "M(" DIGITS "D)?|" DIGITS "D)(T(" DIGITS "H(" DIGITS "M(" DIGITS "S)?)?|" DIGITS "M(" DIGITS "S)?|" DIGITS "S))?"
                 "|T(" DIGITS "H(" DIGITS "M(" DIGITS "S)?)?|" DIGITS "M(" DIGITS "S)?|" DIGITS "S))$"},
    {"email", "^" ATOM "(\\." ATOM "){0,2}@" HOST "$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^" OCTET "(\\." OCTET "){3}$"},
    {"ipv6", "^((" H16 ":){7}" H16 "|(" H16 ":){1,7}:|(" H16 ":){1,6}:" H16 "|(" H16 ":){1,5}(:" H16 "){2}|(" H16 ":){1,4}(:" H16 "){3}|("
             H16 ":){1,3}(:" H16 "){4}|(" H16 ":){1,2}(:" H16 "){5}|" H16 ":(:" H16 "){6}|:((:" H16 "){1,7}|:))$"},
    {"uuid", "^" HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}$"},
    {"uri", "^[A-Za-z][A-Za-z0-9+.-]{0,30}:(//(([A-Za-z0-9._~!$&'()*+,;=:-]|%" HEX HEX ")*@)?" HOST "(:[0-9]{1,5})?(/" PCHAR "*)*|"
            "/(" PCHAR "+(/" PCHAR "*)*)?|" PCHAR "+(/" PCHAR "*)*)(\\?(" PCHAR "|[/?])*)?(#(" PCHAR "|[/?])*)?$"},
};

#undef HEX
#undef LABEL
#undef HOST
#undef OCTET
#undef YEAR
#undef LEAP
#undef DATE
#undef TIME
#undef H16
#undef DIGITS
#undef PCHAR
#undef ATOM

constexpr std::string_view kAnyString =
    R"("([^"\\\x00-\x1f]|\\(["\\/bfnrt]|u([0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|)"
    R"([dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})))*")";
constexpr std::string_view kPlainBody =
    R"(([^"\\\x00-\x1f]|\\(["\\bfnrt]|u00(0[0-7bef]|1[0-9a-f])))*)";
// clang-format on

constexpr int kWholeDigits = 19, kFractionDigits = 17;

// Returns the automaton of an expression, which is made once for each `number`.
template <int number>
DfaPtr shared_regex(std::string_view text) {
  static const DfaPtr dfa = [&] {
    GrammarBudget budget;
    return regex_dfa(text, {}, budget);
  }();
  return dfa;
}

// Compares the digits written so far with a bound, one by one.
enum Order : uint64_t { kEqual, kLess, kGreater };

// Holds one sign's bound on magnitudes.
struct Magnitude {
  bool given = false, exclusive = false;
  std::string whole, fraction;

  Order digit(Order so_far, size_t index, char d) const {  // compares a digit of the whole part
    if (so_far != kEqual || index >= whole.size()) return so_far;
    return d == whole[index] ? kEqual : d < whole[index] ? kLess : kGreater;
  }
  Order whole_done(Order so_far, size_t digits) const {
    if (digits != whole.size()) return digits < whole.size() ? kLess : kGreater;
    return so_far;
  }
  Order fraction_digit(Order so_far, size_t index, char d) const {
    if (so_far != kEqual) return so_far;
    const char own = index < fraction.size() ? fraction[index] : '0';
    return d == own ? kEqual : d < own ? kLess : kGreater;
  }
  Order done(Order so_far, size_t fraction_digits) const {
    return so_far == kEqual && fraction_digits < fraction.size() ? kLess : so_far;
  }
};

// Holds the progress of a number that is being written; packed into the state of an automaton.
struct NumberState {
  enum Phase : uint64_t { kStart, kSign, kZero, kWhole, kPoint, kFraction };
  uint64_t phase = kStart, negative = 0, digits = 0, fraction = 0, low = kEqual, high = kEqual,
           rest = 0;
  uint64_t pack() const {
    return phase | negative << 3 | digits << 4 | fraction << 9 | low << 14 | high << 16 |
           rest << 18;
  }
  static NumberState unpack(uint64_t v) {
    NumberState s;
    s.phase = v & 7;
    s.negative = (v >> 3) & 1;
    s.digits = (v >> 4) & 31;
    s.fraction = (v >> 9) & 31;
    s.low = (v >> 14) & 3;
    s.high = (v >> 16) & 3;
    s.rest = v >> 18;
    return s;
  }
};

class NumberAutomaton {
 public:
  explicit NumberAutomaton(const NumberRules& rules) : rules_(rules) {
    for (const bool negative : {false, true}) {
      Magnitude& least = least_[negative];
      Magnitude& most = most_[negative];
      const auto& near = negative ? rules.high : rules.low;  // the bound nearer to zero
      const auto& far = negative ? rules.low : rules.high;
      possible_[negative] = true;
      if (near && near->value.negative == negative && !near->value.zero())
        set(least, *near);
      else if (near && near->value.zero() && near->exclusive)
        set(least, *near);
      if (far) {
        if (far->value.negative != negative && !far->value.zero())
          possible_[negative] = false;
        else
          set(most, *far);
      }
    }
    counts_digits_ = rules.multiple <= 1000;
    // Longer numbers have no exact double, by which many validators would judge them.
    if (rules.multiple > 0) most_digits_ = 15;
    size_t longest = 0;
    for (const auto* b : {&rules.low, &rules.high})
      if (*b && (*b)->exclusive) longest = std::max(longest, (*b)->value.whole.size());
    const bool exclusive =
        (rules.low && rules.low->exclusive) || (rules.high && rules.high->exclusive);
    // Beside an exclusive bound, digits that a double cannot distinguish from the bound would reach
    // it.
    fraction_digits_ = exclusive ? std::clamp(14 - static_cast<int>(longest), 1, kFractionDigits)
                                 : kFractionDigits;
    if (rules.fraction_digits)
      fraction_digits_ = std::min(fraction_digits_, static_cast<int>(*rules.fraction_digits));
    if (rules.integer || rules.multiple > 0) fraction_digits_ = 0;
  }

  std::optional<uint64_t> step(uint64_t packed, uint8_t byte) const {
    NumberState s = NumberState::unpack(packed);
    const auto c = static_cast<char>(byte);
    if (c == '-') {
      if (s.phase != NumberState::kStart || !possible_[1]) return std::nullopt;
      s.phase = NumberState::kSign;
      s.negative = 1;
      return s.pack();
    }
    const Magnitude &least = least_[s.negative], &most = most_[s.negative];
    if (c == '.') {
      if ((s.phase != NumberState::kZero && s.phase != NumberState::kWhole) ||
          fraction_digits_ == 0)
        return std::nullopt;
      s.low = least.whole_done(order(s.low), s.digits);
      s.high = most.whole_done(order(s.high), s.digits);
      s.phase = NumberState::kPoint;
      s.digits = 0;
      return s.pack();
    }
    switch (s.phase) {
      case NumberState::kStart:
        if (!possible_[0]) return std::nullopt;
        [[fallthrough]];
      case NumberState::kSign:
        if (c == '0') {
          if (s.negative != 0 && fraction_digits_ == 0) return std::nullopt;
          s.phase = NumberState::kZero;
          return s.pack();
        }
        s.phase = NumberState::kWhole;
        break;
      case NumberState::kWhole:
        if (counts_digits_ && s.digits == static_cast<uint64_t>(most_digits_)) return std::nullopt;
        break;
      case NumberState::kPoint:
      case NumberState::kFraction:
        if (s.fraction == static_cast<uint64_t>(fraction_digits_)) return std::nullopt;
        s.low = least.fraction_digit(order(s.low), s.fraction, c);
        s.high = most.fraction_digit(order(s.high), s.fraction, c);
        ++s.fraction;
        s.phase = NumberState::kFraction;
        return s.pack();
      default:
        return std::nullopt;
    }
    s.low = least.digit(order(s.low), s.digits, c);
    s.high = most.digit(order(s.high), s.digits, c);
    if (rules_.multiple > 0)
      s.rest = (s.rest * 10 + static_cast<uint64_t>(c - '0')) % rules_.multiple;
    if (counts_digits_ || least.given || most.given)
      s.digits = std::min<uint64_t>(s.digits + 1, 31);
    return s.pack();
  }

  bool accepts(uint64_t packed) const {
    const NumberState s = NumberState::unpack(packed);
    if (s.phase != NumberState::kZero && s.phase != NumberState::kWhole &&
        s.phase != NumberState::kFraction)
      return false;
    const Magnitude &least = least_[s.negative], &most = most_[s.negative];
    Order low = order(s.low), high = order(s.high);
    if (s.phase != NumberState::kFraction) {
      low = least.whole_done(low, s.digits);
      high = most.whole_done(high, s.digits);
    }
    low = least.done(low, s.fraction);
    high = most.done(high, s.fraction);
    if (least.given && (low == kLess || (low == kEqual && least.exclusive))) return false;
    if (most.given && (high == kGreater || (high == kEqual && most.exclusive))) return false;
    return s.rest == 0;
  }

 private:
  static Order order(uint64_t v) { return static_cast<Order>(v); }
  static void set(Magnitude& m, const NumberBound& b) {
    m.given = true;
    m.exclusive = b.exclusive;
    m.whole = b.value.whole;
    m.fraction = b.value.fraction;
  }
  NumberRules rules_;
  Magnitude least_[2], most_[2];  // indexed by whether the number is negative
  bool possible_[2] = {true, true};
  bool counts_digits_ = true;
  int fraction_digits_ = kFractionDigits, most_digits_ = kWholeDigits;
};

}  // namespace

std::string quoted_plainly(std::string_view text) {
  static constexpr std::string_view kNamed = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
  std::string out = "\"";
  for (const char c : text) {
    if (const size_t at = kNamed.find(c); at != kNamed.npos)
      out += {'\\', kNames[at]};
    else if (static_cast<unsigned char>(c) < 0x20)
      out += fmt::format("\\u{:04x}", static_cast<unsigned>(c));
    else
      out += c;
  }
  return out + '"';
}

namespace {

void append_compact(std::string& out, const Json& value) {
  if (value.is_array()) {
    out += '[';
    for (const Json& v : value.items()) {
      if (&v != value.items().data()) out += ',';
      append_compact(out, v);
    }
    out += ']';
  } else if (value.is_object()) {
    out += '{';
    for (const Json::Member& m : value.members()) {
      if (&m != value.members().data()) out += ',';
      out += quoted_plainly(m.first) + ':';
      append_compact(out, m.second);
    }
    out += '}';
  } else {
    out += value.is_string() ? quoted_plainly(value.as_string()) : value.dump();
  }
}

}  // namespace

std::string compact_json(const Json& value) {
  std::string out;
  append_compact(out, value);
  return out;
}

DfaPtr any_json_string() { return shared_regex<0>(kAnyString); }
DfaPtr plain_json_body() { return shared_regex<1>(kPlainBody); }
DfaPtr plain_json_string() {
  static const DfaPtr dfa = [] {
    GrammarBudget budget;
    return dfa_between(*plain_json_body(), '"', budget);
  }();
  return dfa;
}
DfaPtr any_json_number() {
  return shared_regex<2>("-?(0|[1-9][0-9]{0,18})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,3})?");
}
DfaPtr any_json_integer() { return shared_regex<3>("0|-?[1-9][0-9]{0,18}"); }
DfaPtr json_gap() { return shared_regex<4>(" ?|\\n[ \\t]{0,40}"); }
DfaPtr json_gap_brace() { return shared_regex<5>("( ?|\\n[ \\t]{0,40})\\}"); }
DfaPtr json_gap_bracket() { return shared_regex<6>("( ?|\\n[ \\t]{0,40})\\]"); }

std::string_view format_expression(std::string_view name) {
  for (const KnownFormat& f : kFormats)
    if (f.name == name) return f.expression;
  return {};
}

Decimal decimal_of(const Json& number) {
  Decimal d;
  const bool fraction = number.kind() == Json::Kind::kDouble && number.digits().empty();
  std::string text = fraction ? fmt::format("{}", number.as_double()) : number.dump();
  if (text.starts_with('-')) {
    d.negative = true;
    text.erase(0, 1);
  }
  int exponent = 0;
  if (const size_t e = text.find_first_of("eE"); e != std::string::npos) {
    exponent = std::stoi(text.substr(e + 1));
    text.resize(e);
  }
  const size_t point = text.find('.');
  d.whole = text.substr(0, point);
  if (point != std::string::npos) d.fraction = text.substr(point + 1);
  for (; exponent > 0; --exponent) {
    d.whole += d.fraction.empty() ? '0' : d.fraction[0];
    if (!d.fraction.empty()) d.fraction.erase(0, 1);
  }
  for (; exponent < 0; ++exponent) {
    d.fraction.insert(d.fraction.begin(), d.whole.empty() ? '0' : d.whole.back());
    if (!d.whole.empty()) d.whole.pop_back();
  }
  d.whole.erase(0, std::min(d.whole.find_first_not_of('0'), d.whole.size()));
  while (d.fraction.ends_with('0')) d.fraction.pop_back();
  if (d.zero()) d.negative = false;
  return d;
}

int compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) return a.negative ? -1 : 1;
  const auto key = [](const Decimal& d) {
    return std::tuple(d.whole.size(), std::string_view(d.whole), std::string_view(d.fraction));
  };
  const auto order = key(a) <=> key(b);
  const int sign = order < 0 ? -1 : order > 0 ? 1 : 0;
  return a.negative ? -sign : sign;
}

DfaPtr number_dfa(const NumberRules& rules, GrammarBudget& budget) {
  if (rules.any()) return rules.integer ? any_json_integer() : any_json_number();
  const NumberAutomaton automaton(rules);
  DfaRules r;
  r.alphabet = "-.0123456789";
  r.start = NumberState().pack();
  r.step = [&](uint64_t s, uint8_t b) { return automaton.step(s, b); };
  r.accepts = [&](uint64_t s) { return automaton.accepts(s); };
  return dfa_from_rules(r, budget);
}

}  // namespace moebius
