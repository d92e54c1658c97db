// SPDX-License-Identifier: Apache-2.0
// Compiles strings, numbers and enumerated values of a schema.
#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <numeric>

#include "text/grammar/regex.h"
#include "text/grammar/schema.h"

namespace moebius {
namespace {

constexpr uint32_t kMostMultiple = 10000;
constexpr size_t kMostLength = size_t{1} << 24;  // longer than any answer

size_t code_points(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

// Returns the automaton of a format's text without its quotes or with them; an empty one for an
// unknown format. Each of the twenty is kept for the process.
DfaPtr format_dfa(std::string_view name, bool quoted) {
  static std::mutex mutex;
  static std::map<std::string, DfaPtr, std::less<>> made[2];
  {
    const std::lock_guard lock(mutex);
    const auto it = made[quoted].find(name);
    if (it != made[quoted].end()) return it->second;
  }
  GrammarBudget own({200'000, 200'000, 1'000'000'000});
  DfaPtr dfa = quoted ? dfa_between(*format_dfa(name, /*quoted=*/false), '"', own)
                      : regex_dfa(format_expression(name), {RegexBytes::kJson, true}, own);
  const std::lock_guard lock(mutex);
  return made[quoted].emplace(name, dfa).first->second;
}

// Returns k for a number 10^-k such as 0.01; nothing for another number.
std::optional<uint32_t> decimal_places(const Decimal& d) {
  if (!d.whole.empty() || d.fraction.empty() || d.fraction.back() != '1' ||
      d.fraction.find_first_not_of('0') != d.fraction.size() - 1)
    return std::nullopt;
  return static_cast<uint32_t>(d.fraction.size());
}

}  // namespace

GrammarBuilder::Node SchemaCompiler::string_node(const std::vector<const Json*>& plain) {
  builder_.budget().work(lookups(plain, 4));
  size_t least = 0, most = UINT32_MAX;
  std::set<std::string> patterns, formats;
  const Json *owner = nullptr, *bounded = nullptr;
  for (const Json* s : plain) {
    const auto low = count_of(*s, "minLength"), high = count_of(*s, "maxLength");
    refuse_above(*s, "minLength", low, kMostLength);
    refuse_above(*s, "maxLength", high, kMostLength);
    least = std::max(least, low.value_or(0));
    most = std::min(most, high.value_or(UINT32_MAX));
    if (low || high) bounded = s;
    if (const Json* p = s->find("pattern")) {
      builder_.budget().work(p->as_string().size() / 4);
      patterns.insert(p->as_string());
      owner = s;
    }
    if (const Json* f = s->find("format")) formats.insert(f->as_string());
  }
  if (least > most) return never();
  constexpr Node kEnd = GrammarBuilder::kEnd;
  if (patterns.empty() && formats.empty())
    return builder_.at_terminal(
        builder_.string_terminal(static_cast<uint32_t>(least), static_cast<uint32_t>(most)), kEnd);
  std::string key = fmt::format("{}:{}", least, most);
  for (const std::string& p : patterns) key += fmt::format(" p{}:{}", p.size(), p);
  for (const std::string& f : formats) key += " f" + f;
  if (const auto it = strings_.find(key); it != strings_.end())
    return builder_.at_terminal(it->second, kEnd);
  GrammarBudget& budget = builder_.budget();
  DfaPtr body;
  const auto meet = [&](const DfaPtr& other) {
    body = body == nullptr ? other : dfa_both(*body, *other, budget);
  };
  bool implied = false;
  for (const std::string& p : patterns) {
    budget.work(lookups(plain, 1));
    for (const Json* s : plain)
      if (const Json* own = s->find("pattern"); own != nullptr && own->as_string() == p) owner = s;
    meet(pattern_dfa(*owner, "pattern", p));
    const auto lengths = anchored_lengths(*parse_regex(p, budget));
    implied =
        implied || (lengths && lengths->least >= least && lengths->most && *lengths->most <= most);
  }
  for (const std::string& f : formats) meet(format_dfa(f, /*quoted=*/false));
  const std::string before = budget.path();
  if (bounded != nullptr)
    budget.at(document_.keyword_path(*bounded, most != UINT32_MAX ? "maxLength" : "minLength"));
  if (!implied && (least > 0 || most != UINT32_MAX))
    meet(regex_dfa(
        fmt::format("[^]{{{},{}}}", least, most == UINT32_MAX ? "" : std::to_string(most)),
        {RegexBytes::kJson, false}, budget));
  const bool format_alone =
      patterns.empty() && formats.size() == 1 && least == 0 && most == UINT32_MAX;
  const DfaPtr whole = format_alone ? format_dfa(*formats.begin(), /*quoted=*/true)
                                    : dfa_between(*body, '"', budget);
  budget.at(before);
  const uint32_t terminal = builder_.dfa_terminal(whole);
  strings_.emplace(std::move(key), terminal);
  return builder_.at_terminal(terminal, kEnd);
}

NumberRules SchemaCompiler::number_rules(const std::vector<const Json*>& plain, bool integer) {
  builder_.budget().work(lookups(plain, 5));
  NumberRules rules;
  rules.integer = integer;
  const auto bound = [&](const Json& s, std::string_view name, bool low, bool exclusive) {
    const Json* v = s.find(name);
    if (v == nullptr) return;
    builder_.budget().work(32 + weight_of(*v));
    const Decimal d = decimal_of(*v);
    auto& now = low ? rules.low : rules.high;
    const int order = now ? compare(d, now->value) : (low ? 1 : -1);
    if (order == 0)
      now->exclusive = now->exclusive || exclusive;
    else if ((order > 0) == low)
      now = NumberBound{d, exclusive};
  };
  for (const Json* s : plain) {
    bound(*s, "minimum", /*low=*/true, /*exclusive=*/false);
    bound(*s, "exclusiveMinimum", /*low=*/true, /*exclusive=*/true);
    bound(*s, "maximum", /*low=*/false, /*exclusive=*/false);
    bound(*s, "exclusiveMaximum", /*low=*/false, /*exclusive=*/true);
    const Json* multiple = s->find("multipleOf");
    if (multiple == nullptr) continue;
    builder_.budget().work(32);
    const Decimal d = decimal_of(*multiple);
    if (const auto places = decimal_places(d)) {
      rules.fraction_digits = std::min(rules.fraction_digits.value_or(UINT32_MAX), *places);
    } else if (d.fraction.empty()) {
      const double v = multiple->as_double();
      const auto m = static_cast<uint32_t>(std::min(v, 4e9));
      const uint64_t all = rules.multiple == 0 ? m : std::lcm<uint64_t>(rules.multiple, m);
      if (all > kMostMultiple)
        document_.refuse(*s, "multipleOf", fmt::format("is above {}", kMostMultiple),
                         "schema_too_complex");
      rules.multiple = static_cast<uint32_t>(all);
    } else {
      document_.refuse(*s, "multipleOf", "is neither an integer nor a power of ten like 0.01");
    }
  }
  return rules;
}

GrammarBuilder::Node SchemaCompiler::number_node(const std::vector<const Json*>& plain,
                                                 bool integer) {
  const NumberRules rules = number_rules(plain, integer);
  const auto shown = [](const std::optional<NumberBound>& b) {
    return b ? fmt::format("{}{}{}.{}", b->exclusive ? "x" : "", b->value.negative ? "-" : "",
                           b->value.whole, b->value.fraction)
             : std::string("_");
  };
  const std::string key =
      fmt::format("n{} {} {} {} {}", integer, shown(rules.low), shown(rules.high), rules.multiple,
                  rules.fraction_digits ? static_cast<int>(*rules.fraction_digits) : -1);
  auto it = strings_.find(key);
  if (it == strings_.end())
    it = strings_.emplace(key, builder_.dfa_terminal(number_dfa(rules, builder_.budget()))).first;
  return builder_.at_terminal(it->second, GrammarBuilder::kEnd);
}

// Returns the values that every schema with enum or const allows; nothing if there is no such
// schema.
std::optional<std::vector<Json>> SchemaCompiler::values_of(const std::vector<const Json*>& plain) {
  GrammarBudget& budget = builder_.budget();
  std::optional<std::vector<Json>> out;
  budget.work(lookups(plain, 2));
  const auto meet = [&](const std::vector<Json>& values) {
    budget.work(8 * weight_of(values));
    if (!out) {
      out = values;
      return;
    }
    const size_t weight = weight_of(values);
    std::erase_if(*out, [&](const Json& v) {
      budget.work(weight);
      return std::none_of(values.begin(), values.end(),
                          [&](const Json& w) { return json_equal(v, w); });
    });
  };
  for (const Json* s : plain) {
    if (const Json* list = s->find("enum")) meet(list->items());
    if (const Json* one = s->find("const")) meet({*one});
  }
  return out;
}

GrammarBuilder::Node SchemaCompiler::enum_node(const std::vector<const Json*>& plain,
                                               const std::vector<Json>& values) {
  std::vector<std::string> words;
  std::vector<Node> branches;
  for (const Json& v : values) {
    builder_.budget().work(64);
    if (!std::all_of(plain.begin(), plain.end(), [&](const Json* s) { return fits(v, *s); }))
      continue;
    if (v.is_array() || v.is_object())
      branches.push_back(const_node(v, GrammarBuilder::kEnd));
    else
      words.push_back(compact_json(v));
  }
  if (words.size() == 1)
    branches.push_back(builder_.at_text(words[0], GrammarBuilder::kEnd));
  else if (!words.empty())
    branches.push_back(
        builder_.at_dfa(dfa_from_words(words, builder_.budget()), GrammarBuilder::kEnd));
  if (branches.empty()) return never();
  return builder_.at_choice(branches);
}

// Recursion is bounded by the document's depth.
GrammarBuilder::Node SchemaCompiler::const_node(const Json& value, Node next) {
  const uint32_t gap = builder_.dfa_terminal(json_gap());
  if (value.is_array()) {
    Node at = builder_.at_dfa(json_gap_bracket(), next);
    for (size_t i = value.items().size(); i-- > 0;) {
      at = builder_.at_terminal(gap, const_node(value.items()[i], at));
      if (i > 0) at = builder_.at_text(",", at);
    }
    return builder_.at_text("[", at);
  }
  if (value.is_object()) {
    Node at = builder_.at_dfa(json_gap_brace(), next);
    for (size_t i = value.members().size(); i-- > 0;) {
      const auto& [name, v] = value.members()[i];
      at =
          builder_.at_terminal(gap, builder_.at_text(quoted_plainly(name) + ":",
                                                     builder_.at_terminal(gap, const_node(v, at))));
      if (i > 0) at = builder_.at_text(",", at);
    }
    return builder_.at_text("{", at);
  }
  return builder_.at_text(compact_json(value), next);
}

void SchemaCompiler::refuse_container(const Json& value, const Json& schema) {
  constexpr std::string_view kOfArrays[] = {"items", "prefixItems"};
  constexpr std::string_view kOfObjects[] = {"properties", "additionalProperties",
                                             "patternProperties"};
  const auto refuse = [&](std::string_view name) {
    if (schema.find(name) != nullptr)
      document_.refuse(schema, name, "is not kept beside enum or const with such values");
  };
  if (value.is_array())
    for (const std::string_view name : kOfArrays) refuse(name);
  if (value.is_object())
    for (const std::string_view name : kOfObjects) refuse(name);
}

bool SchemaCompiler::fits(const Json& value, const Json& schema) {
  builder_.budget().work(16 + lookups(schema, 6) + weight_of(value));
  if ((types_of(schema) & json_type(value)) == 0) return false;
  refuse_container(value, schema);
  const auto within = [&](size_t count, std::string_view low, std::string_view high) {
    return count >= count_of(schema, low).value_or(0) &&
           count <= count_of(schema, high).value_or(SIZE_MAX);
  };
  if (value.is_string()) {
    const std::string& text = value.as_string();
    if (!within(code_points(text), "minLength", "maxLength")) return false;
    const std::string quoted = quoted_plainly(text);
    const std::string_view body = std::string_view(quoted).substr(1, quoted.size() - 2);
    builder_.budget().work(2 * quoted.size());
    if (const Json* p = schema.find("pattern"))
      if (!pattern_dfa(schema, "pattern", p->as_string())->matches(body)) return false;
    if (const Json* f = schema.find("format"))
      if (!format_dfa(f->as_string(), /*quoted=*/false)->matches(body)) return false;
    return true;
  }
  if (value.is_number()) {
    const NumberRules rules = number_rules({&schema}, false);
    const Decimal d = decimal_of(value);
    const auto keeps = [](const NumberBound& bound, int order) {  // order > 0: within the bound
      return order > 0 || (order == 0 && !bound.exclusive);
    };
    if (rules.low && !keeps(*rules.low, compare(d, rules.low->value))) return false;
    if (rules.high && !keeps(*rules.high, compare(rules.high->value, d))) return false;
    if (rules.fraction_digits && d.fraction.size() > *rules.fraction_digits) return false;
    return rules.multiple == 0 ||
           (d.fraction.empty() && std::fmod(value.as_double(), rules.multiple) == 0);
  }
  if (value.is_array()) return within(value.items().size(), "minItems", "maxItems");
  if (value.is_object()) {
    if (const Json* required = schema.find("required"))
      for (const Json& name : required->items()) {
        builder_.budget().work(2 + value.members().size() / 2);
        if (value.find(name.as_string()) == nullptr) return false;
      }
    return within(value.members().size(), "minProperties", "maxProperties");
  }
  return true;
}

}  // namespace moebius
