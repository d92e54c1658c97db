// SPDX-License-Identifier: Apache-2.0
// Compiles lists of schema parts to grammar rules; arrays and objects.
#include "text/grammar/schema.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "text/grammar/regex.h"

namespace moebius {
namespace {

constexpr size_t kMostItems = 1024;    // most items that are counted one by one
constexpr uint64_t kMostWays = 10000;  // most combinations of choices for one value

}  // namespace

SchemaCompiler::SchemaCompiler(GrammarBuilder& builder, const Json& schema, const std::string& path)
    : builder_(builder), document_(schema, path, builder.budget()) {}

GrammarBuilder::Rule SchemaCompiler::compile() {
  const Rule root = rule_of({{Part::Kind::kSchema, &document_.root()}});
  while (!waiting_.empty()) {
    const auto [rule, parts] = std::move(waiting_.back());
    waiting_.pop_back();
    build(rule, parts);
  }
  return root;
}

GrammarBuilder::Rule SchemaCompiler::rule_of(Parts parts) {
  GrammarBudget& budget = builder_.budget();
  Parts key = parts;
  std::sort(key.begin(), key.end());
  key.erase(std::unique(key.begin(), key.end()), key.end());
  budget.work(32 + 16 * key.size());
  const auto it = rules_.find(key);
  if (it != rules_.end()) return it->second;
  const std::string path = parts.empty() ? "" : document_.path(*parts.back().json);
  budget.work(path.size() / 8);
  const Rule rule = builder_.declare(path);
  rules_.emplace(std::move(key), rule);
  waiting_.emplace_back(rule, std::move(parts));
  return rule;
}

GrammarBuilder::Rule SchemaCompiler::value_rule(const Parts& parts) {
  return parts.empty() ? builder_.json_value() : rule_of(parts);
}

// Returns whether every value that satisfies p must satisfy q: q is a branch of p's choices, or
// what p refers to.
bool SchemaCompiler::leads_to(const Json& p, const Json& q) {
  builder_.budget().work(8 + lookups(p, 4));
  for (const char* name : {"anyOf", "oneOf", "allOf"})
    if (const Json* list = p.find(name); list != nullptr && list->is_array() &&
                                         !list->items().empty() && &list->items().front() <= &q &&
                                         &q <= &list->items().back())
      return true;
  const Json* ref = p.find("$ref");
  return ref != nullptr && &document_.target(p, *ref) == &q;
}

void SchemaCompiler::refuse_above(const Json& schema, std::string_view keyword,
                                  std::optional<size_t> count, size_t most) const {
  if (count && *count > most)
    document_.refuse(schema, keyword, fmt::format("is above {}", most), "schema_too_complex");
}

// Refuses schemas in which a value can choose in too many ways among nested branches. Rules are
// shared here, so that a chain of choices costs little; but one that grows like 2^k is refused.
void SchemaCompiler::check_ways(const Json& schema) {
  std::vector<const Json*> work = {&schema};
  while (!work.empty()) {
    const Json& s = *work.back();
    document_.check(s);
    builder_.budget().work(16 + lookups(s, 4));
    const bool fresh = ways_.try_emplace(&s, 0).second;  // 0: not computed yet
    if (!fresh && ways_[&s] != 0) {
      work.pop_back();
      continue;
    }
    const auto each = [&](const auto& visit) {  // visit(keyword, schema)
      if (const Json* ref = s.find("$ref")) visit("$ref", document_.target(s, *ref));
      for (const char* name : {"allOf", "anyOf", "oneOf"})
        if (const Json* list = s.find(name))
          for (size_t i = 0; i < list->items().size(); ++i)
            visit(name, document_.child(s, fmt::format("{}[{}]", name, i), list->items()[i]));
    };
    if (fresh) {
      each([&](std::string_view, const Json& next) {
        if (!ways_.contains(&next)) work.push_back(&next);
      });
      continue;
    }
    work.pop_back();
    uint64_t all = 1, any = 0, one = 0;
    each([&](std::string_view name, const Json& next) {
      // 0 belongs to a cycle, which is refused elsewhere.
      const uint64_t ways = std::max<uint64_t>(ways_[&next], 1);
      if (name == "anyOf")
        any += ways;
      else if (name == "oneOf")
        one += ways;
      else
        all = std::min(all * ways, kMostWays + 1);
    });
    for (const auto& [name, ways] : {std::pair{"anyOf", any}, std::pair{"oneOf", one}}) {
      all = std::min(all * std::max<uint64_t>(ways, 1), kMostWays + 1);
      if (all > kMostWays && ways > 0)
        document_.refuse(s, name, fmt::format("grows to more than {} alternatives", kMostWays),
                         "schema_too_complex");
    }
    if (all > kMostWays)
      document_.refuse(s, s.find("allOf") != nullptr ? "allOf" : "$ref",
                       fmt::format("grows to more than {} alternatives", kMostWays),
                       "schema_too_complex");
    ways_[&s] = all;
  }
}

// Follows references and allOf. Refuses a schema that leads to itself without a value between.
SchemaCompiler::Flat SchemaCompiler::flatten(const Parts& parts) {
  Flat out;
  std::map<const Json*, bool> seen;  // true: still being followed
  struct Step {
    const Json* schema;
    bool leave;
  };
  std::vector<Step> work;
  for (const Part& p : parts) {
    if (p.kind == Part::Kind::kPlain) {
      if (seen.try_emplace(p.json, false).second) out.plain.push_back(p.json);
      continue;
    }
    if (p.kind == Part::Kind::kChoice) {
      out.choices.push_back(p);
      continue;
    }
    // The schemas on the path to this one are still being followed.
    std::vector<const Json*> above = {p.json};
    for (size_t i = 0; i < above.size(); ++i)
      for (auto& [schema, open] : seen)
        if (!open && leads_to(*schema, *above[i])) {
          open = true;
          above.push_back(schema);
        }
    work.push_back({p.json, false});
    while (!work.empty()) {
      const Step step = work.back();
      work.pop_back();
      const Json& s = *step.schema;
      builder_.budget().work(16 + lookups(s, 4));
      if (step.leave) {
        seen[&s] = false;
        continue;
      }
      if (const auto it = seen.find(&s); it != seen.end()) {
        if (it->second) document_.refuse(s, "", "refers to itself", "invalid_schema");
        continue;
      }
      document_.check(s);
      if (s.is_bool()) {
        out.never = out.never || !s.as_bool();
        continue;
      }
      seen.emplace(&s, true);
      work.push_back({&s, true});
      out.plain.push_back(&s);
      if (const Json* all = s.find("allOf"))
        for (size_t i = all->items().size(); i-- > 0;)
          work.push_back(
              {&document_.child(s, fmt::format("allOf[{}]", i), all->items()[i]), false});
      if (const Json* ref = s.find("$ref")) work.push_back({&document_.target(s, *ref), false});
      if (const Json* any = s.find("anyOf")) {
        for (size_t i = 0; i < any->items().size(); ++i)
          document_.child(s, fmt::format("anyOf[{}]", i), any->items()[i]);
        out.choices.push_back({Part::Kind::kChoice, any});
      }
      if (const Json* one = s.find("oneOf")) {
        check_apart(s);
        out.choices.push_back({Part::Kind::kChoice, one});
      }
    }
    for (const Json* s : above)
      if (const auto it = seen.find(s); it != seen.end()) it->second = false;
  }
  std::sort(out.choices.begin(), out.choices.end());
  out.choices.erase(std::unique(out.choices.begin(), out.choices.end()), out.choices.end());
  return out;
}

void SchemaCompiler::build(Rule rule, const Parts& parts) {
  builder_.budget().at(parts.empty() ? "" : document_.path(*parts.back().json));
  for (const Part& p : parts)
    if (p.kind == Part::Kind::kSchema) check_ways(*p.json);
  const Flat flat = flatten(parts);
  if (flat.never) return builder_.define(rule, never());
  if (flat.choices.empty()) return builder_.define(rule, value_node(flat.plain));
  // Makes one rule for each branch of the first open choice.
  Parts rest;
  for (const Json* s : flat.plain) rest.push_back({Part::Kind::kPlain, s});
  rest.insert(rest.end(), flat.choices.begin() + 1, flat.choices.end());
  std::vector<Node> branches;
  for (const Json& branch : flat.choices[0].json->items()) {
    Parts with = rest;
    with.push_back({Part::Kind::kSchema, &branch});
    branches.push_back(builder_.at_call(rule_of(std::move(with)), GrammarBuilder::kEnd));
  }
  builder_.define(rule, builder_.at_choice(branches));
}

GrammarBuilder::Node SchemaCompiler::value_node(const std::vector<const Json*>& plain) {
  builder_.budget().work(16 + lookups(plain, 12));
  uint32_t types = kAllTypes;
  bool asks = false;  // whether it restricts values at all
  for (const Json* s : plain) {
    types &= types_of(*s);
    for (const auto& [name, value] : s->members())
      asks = asks || (name != "$ref" && name != "allOf" && name != "anyOf" && name != "oneOf" &&
                      name != "$defs" && name != "definitions" && name != "title" &&
                      name != "description" && name != "default" && name != "examples");
  }
  if (!asks) return builder_.at_call(builder_.json_value(), GrammarBuilder::kEnd);
  if (const auto values = values_of(plain)) return enum_node(plain, *values);
  constexpr Node kEnd = GrammarBuilder::kEnd;
  std::vector<Node> branches;
  if (types & kObjectType) branches.push_back(object_node(plain));
  if (types & kArrayType) branches.push_back(array_node(plain));
  if (types & kStringType) branches.push_back(string_node(plain));
  if (types & kNumberType) branches.push_back(number_node(plain, (types & kFractionType) == 0));
  if (types & kBoolType)
    for (const char* word : {"true", "false"}) branches.push_back(builder_.at_text(word, kEnd));
  if (types & kNullType) branches.push_back(builder_.at_text("null", kEnd));
  return builder_.at_choice(branches);
}

GrammarBuilder::Node SchemaCompiler::array_node(const std::vector<const Json*>& plain) {
  builder_.budget().work(lookups(plain, 5));
  size_t least = 0, prefix = 0;
  std::optional<size_t> most;
  for (const Json* s : plain) {
    const auto low = count_of(*s, "minItems"), high = count_of(*s, "maxItems");
    refuse_above(*s, "minItems", low, kMostItems);
    refuse_above(*s, "maxItems", high, kMostItems);
    if (low) least = std::max(least, *low);
    if (high) most = std::min(most.value_or(*high), *high);
    if (const Json* list = s->find("prefixItems")) prefix = std::max(prefix, list->items().size());
  }
  if (most && *most < least) return never();
  if (prefix > kMostItems) builder_.budget().too_complex("has too many prefixItems");
  const auto item = [&](size_t index) {
    builder_.budget().work(lookups(plain, 2));
    Parts parts;
    for (const Json* s : plain) {
      const Json* list = s->find("prefixItems");
      const Json* rest = s->find("items");
      if (list != nullptr && index < list->items().size())
        parts.push_back(part(*s, fmt::format("prefixItems[{}]", index), list->items()[index]));
      else if (rest != nullptr)
        parts.push_back(part(*s, "items", *rest));
    }
    return value_rule(parts);
  };
  constexpr Node kEnd = GrammarBuilder::kEnd;
  const Node close = builder_.at_dfa(json_gap_bracket(), kEnd);
  const uint32_t gap = builder_.dfa_terminal(json_gap());
  const uint32_t comma = builder_.text_terminal(",");
  const Rule rest = most && *most <= prefix ? 0 : item(prefix);
  // Nodes after each number of items, built from the greatest number down.
  const size_t last = most ? *most : std::max(least, prefix);
  Node after = close;
  if (!most) {
    after = builder_.open_choice(2);
    const Node more = builder_.at_call(rest, after);
    builder_.set_branch(after, 0, builder_.at_terminal(comma, builder_.at_terminal(gap, more)));
    builder_.set_branch(after, 1, close);
    if (last == 0)
      return builder_.at_text(
          "[", builder_.at_choice(std::array{builder_.at_terminal(gap, more), close}));
  }
  for (size_t k = last; k-- > 0;) {
    const Rule r = k < prefix ? item(k) : rest;
    const Node one = builder_.at_terminal(gap, builder_.at_call(r, after));
    const Node go_on = k == 0 ? one : builder_.at_terminal(comma, one);
    after = k < least ? go_on : builder_.at_choice(std::array{go_on, close});
  }
  return builder_.at_text("[", after);
}

std::vector<SchemaCompiler::Property> SchemaCompiler::listed(
    const std::vector<const Json*>& plain) {
  builder_.budget().work(lookups(plain, 2));
  std::vector<Property> out;
  std::map<std::string, size_t, std::less<>> index;
  const auto add = [&](const std::string& name, bool required) {
    const auto [it, fresh] = index.try_emplace(name, out.size());
    if (fresh) out.push_back({name, false});
    out[it->second].required = out[it->second].required || required;
    builder_.budget().work(16 + name.size() / 8);
  };
  for (const Json* s : plain)
    if (const Json* properties = s->find("properties"))
      for (const auto& [name, schema] : properties->members()) add(name, false);
  for (const Json* s : plain)
    if (const Json* required = s->find("required"))
      for (const Json& name : required->items()) add(name.as_string(), true);
  return out;
}

DfaPtr SchemaCompiler::pattern_dfa(const Json& schema, std::string_view keyword,
                                   const std::string& pattern) {
  const auto it = patterns_.find(pattern);
  if (it != patterns_.end()) return it->second;
  GrammarBudget& budget = builder_.budget();
  const std::string before = budget.path();
  budget.at(document_.keyword_path(schema, keyword));
  DfaPtr dfa = regex_dfa(pattern, {RegexBytes::kJson, true}, budget);
  budget.at(before);
  patterns_.emplace(pattern, dfa);
  return dfa;
}

SchemaCompiler::Parts SchemaCompiler::parts_of_name(const std::vector<const Json*>& plain,
                                                    const std::string& name) {
  Parts parts;
  for (const Json* s : plain) {
    bool named = false;
    const Json* properties = s->find("properties");
    if (const Json* v = properties != nullptr ? properties->find(name) : nullptr) {
      parts.push_back(part(*s, "properties." + name, *v));
      named = true;
    }
    builder_.budget().work(lookups(*s, 3) +
                           (properties != nullptr ? properties->members().size() : 0));
    if (const Json* patterns = s->find("patternProperties")) {
      const std::string quoted = quoted_plainly(name);
      for (const auto& [pattern, v] : patterns->members()) {
        builder_.budget().work(16 + quoted.size() + pattern.size() / 8);
        const DfaPtr dfa = pattern_dfa(*s, "patternProperties", pattern);
        if (!dfa->matches(std::string_view(quoted).substr(1, quoted.size() - 2))) continue;
        parts.push_back(part(*s, "patternProperties." + pattern, v));
        named = true;
      }
    }
    const Json* others = s->find("additionalProperties");
    if (!named && others != nullptr) parts.push_back(part(*s, "additionalProperties", *others));
  }
  return parts;
}

// Returns a class of names for each pattern, with the parts that apply to it, and a class of all
// other names.
std::vector<SchemaCompiler::NameClass> SchemaCompiler::name_classes(
    const std::vector<const Json*>& plain, const std::vector<Property>& names) {
  GrammarBudget& budget = builder_.budget();
  std::vector<std::string> quoted;
  for (const Property& p : names) quoted.push_back(quoted_plainly(p.name));
  const DfaPtr taken = quoted.empty() ? nullptr : dfa_from_words(quoted, budget);
  struct Pattern {
    const Json* schema;
    std::string text;
    DfaPtr dfa;
  };
  std::vector<Pattern> patterns;
  for (const Json* s : plain)
    if (const Json* list = s->find("patternProperties"))
      for (const auto& member : list->members()) {
        const std::string& text = member.first;
        budget.work(16 + patterns.size() + text.size() / 8);
        if (std::none_of(patterns.begin(), patterns.end(),
                         [&](const Pattern& p) { return p.text == text; }))
          patterns.push_back({s, text, pattern_dfa(*s, "patternProperties", text)});
      }
  for (size_t i = 0; i < patterns.size(); ++i)
    for (size_t k = 0; k < i; ++k)
      if (!dfa_both(*patterns[i].dfa, *patterns[k].dfa, budget)->empty())
        document_.refuse(
            *patterns[i].schema, "patternProperties",
            fmt::format("has patterns that share names: '{}' and '{}'",
                        printable(patterns[k].text, 40), printable(patterns[i].text, 40)));
  std::vector<NameClass> out;
  DfaPtr others = plain_json_string();
  if (taken) others = dfa_without(others, *taken, budget);
  for (const Pattern& p : patterns) {
    NameClass c;
    c.names = dfa_between(*p.dfa, '"', budget);
    others = dfa_without(others, *c.names, budget);
    if (taken) c.names = dfa_without(c.names, *taken, budget);
    budget.work(lookups(plain, 2) + plain.size() * patterns.size());
    for (const Json* s : plain) {
      const Json* list = s->find("patternProperties");
      const Json* v = list != nullptr ? list->find(p.text) : nullptr;
      if (v != nullptr)
        c.parts.push_back(part(*s, "patternProperties." + p.text, *v));
      else if (const Json* rest = s->find("additionalProperties"))
        c.parts.push_back(part(*s, "additionalProperties", *rest));
    }
    out.push_back(std::move(c));
  }
  NameClass rest;
  if (taken || !patterns.empty()) rest.names = others;
  bool closed = false;
  for (const Json* s : plain)
    if (const Json* v = s->find("additionalProperties")) {
      rest.parts.push_back(part(*s, "additionalProperties", *v));
      closed = closed || forbids_others(*s);
    }
  if (!closed) out.push_back(std::move(rest));
  return out;
}

GrammarBuilder::Node SchemaCompiler::object_node(const std::vector<const Json*>& plain) {
  constexpr Node kEnd = GrammarBuilder::kEnd;
  builder_.budget().work(lookups(plain, 6));
  const std::vector<Property> names = listed(plain);
  // A closed object needs no automaton of other names.
  const bool closed =
      std::any_of(plain.begin(), plain.end(), [](const Json* s) { return forbids_others(*s); });
  const bool patterned = std::any_of(plain.begin(), plain.end(), [](const Json* s) {
    const Json* v = s->find("patternProperties");
    return v != nullptr && !v->members().empty();
  });
  const std::vector<NameClass> classes =
      closed && !patterned ? std::vector<NameClass>() : name_classes(plain, names);

  // Number of unlisted properties that the object must and may have.
  const auto needed = static_cast<size_t>(
      std::count_if(names.begin(), names.end(), [](const Property& p) { return p.required; }));
  size_t least = 0;
  std::optional<size_t> most;
  for (const Json* s : plain) {
    if (const auto low = count_of(*s, "minProperties"); low && *low > needed) {
      if (needed < names.size())
        document_.refuse(*s, "minProperties", "is not kept beside properties that are optional");
      if (*low - needed > kMostItems)
        document_.refuse(*s, "minProperties", fmt::format("is above {}", kMostItems),
                         "schema_too_complex");
      least = std::max(least, *low - needed);
    }
    const auto high = count_of(*s, "maxProperties");
    if (!high || (classes.empty() && *high >= names.size())) continue;
    if (needed < names.size())
      document_.refuse(*s, "maxProperties", "is not kept beside properties that are optional");
    if (*high < needed) return never();
    if (*high - needed > kMostItems)
      document_.refuse(*s, "maxProperties", fmt::format("is above {}", kMostItems),
                       "schema_too_complex");
    most = std::min(most.value_or(*high - needed), *high - needed);
  }
  if (classes.empty()) most = 0;
  if (most && *most < least) return never();

  const Node close = builder_.at_dfa(json_gap_brace(), kEnd);
  const uint32_t gap = builder_.dfa_terminal(json_gap());
  const uint32_t comma = builder_.text_terminal(","), colon = builder_.text_terminal(":");
  const auto behind_comma = [&](Node keys) {
    return builder_.at_terminal(comma, builder_.at_terminal(gap, keys));
  };
  // Builds an unlisted name and its value.
  const auto other = [&](Node next) {
    std::vector<Node> branches;
    for (const NameClass& c : classes) {
      const uint32_t t =
          c.names == nullptr ? builder_.string_terminal() : builder_.dfa_terminal(c.names);
      const Node value = builder_.at_terminal(gap, builder_.at_call(value_rule(c.parts), next));
      branches.push_back(builder_.at_terminal(t, builder_.at_terminal(colon, value)));
    }
    return builder_.at_choice(branches);
  };
  // Built from the end: `keys` is the node where a name must come, `after` the node after a value.
  Node keys = 0, after = close;
  bool has_keys = false;
  if (!classes.empty()) {
    const size_t last = most ? *most : least;
    if (!most) {
      after = builder_.open_choice(2);
      keys = other(after);
      has_keys = true;
      builder_.set_branch(after, 0, behind_comma(keys));
      builder_.set_branch(after, 1, close);
    }
    for (size_t k = last; k-- > 0;) {
      keys = other(after);
      has_keys = true;
      const Node more = behind_comma(keys);
      after = k < least ? more : builder_.at_choice(std::array{more, close});
    }
  }
  bool may_close = least == 0;
  for (size_t i = names.size(); i-- > 0;) {
    const Property& p = names[i];
    const Rule value = value_rule(parts_of_name(plain, p.name));
    const Node own = builder_.at_text(quoted_plainly(p.name) + ":",
                                      builder_.at_terminal(gap, builder_.at_call(value, after)));
    keys = p.required || !has_keys ? own : builder_.at_choice(std::array{own, keys});
    has_keys = true;
    may_close = may_close && !p.required;
    const Node more = behind_comma(keys);
    after = may_close ? builder_.at_choice(std::array{more, close}) : more;
  }
  std::vector<Node> first;
  if (has_keys) first.push_back(builder_.at_terminal(gap, keys));
  if (may_close) first.push_back(close);
  return builder_.at_text("{", builder_.at_choice(first));
}

GrammarBuilder::Rule GrammarBuilder::schema(const Json& schema, const std::string& path) {
  SchemaCompiler compiler(*this, schema, path);
  return compiler.compile();
}

}  // namespace moebius
