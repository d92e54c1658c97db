// SPDX-License-Identifier: Apache-2.0
// Accepts oneOf where no value can satisfy two branches: then it is the same as anyOf.
#include <fmt/core.h>

#include <algorithm>

#include "text/grammar/schema.h"

namespace moebius {
namespace {

constexpr size_t kMostFollowed = 64;  // most schemas that a branch consists of

// Returns the steps that the two functions below take.
size_t steps_of_name(const std::vector<const Json*>& plain) {
  size_t steps = lookups(plain, 3);
  for (const Json* s : plain)
    for (const char* name : {"required", "properties"})
      if (const Json* list = s->find(name))
        steps += (list->items().size() + list->members().size()) / 4;
  return steps;
}

bool requires_name(const std::vector<const Json*>& plain, std::string_view name) {
  return std::any_of(plain.begin(), plain.end(), [&](const Json* s) {
    const Json* list = s->find("required");
    return list != nullptr && std::any_of(list->items().begin(), list->items().end(),
                                          [&](const Json& n) { return n.as_string() == name; });
  });
}

// Returns whether no object that satisfies the schemas has the name.
bool forbids_name(const std::vector<const Json*>& plain, std::string_view name) {
  return std::any_of(plain.begin(), plain.end(), [&](const Json* s) {
    const Json* properties = s->find("properties");
    const Json* patterns = s->find("patternProperties");
    const Json* own = properties != nullptr ? properties->find(name) : nullptr;
    if (own != nullptr) return own->is_bool() && !own->as_bool();
    return forbids_others(*s) && (patterns == nullptr || patterns->members().empty());
  });
}

bool none_equal(const std::vector<Json>& a, const std::vector<Json>& b) {
  return std::none_of(a.begin(), a.end(), [&](const Json& v) {
    return std::any_of(b.begin(), b.end(), [&](const Json& w) { return json_equal(v, w); });
  });
}

}  // namespace

// Collects what a branch requires without its own choices.
SchemaCompiler::Summary SchemaCompiler::summary(const Json& schema) {
  Summary out;
  std::vector<const Json*> work = {&schema};
  for (size_t i = 0; i < work.size() && i < kMostFollowed; ++i) {
    const Json& s = *work[i];
    document_.check(s);
    builder_.budget().work(lookups(s, 5) + out.plain.size());
    if (s.is_bool()) {
      if (!s.as_bool()) out.types = 0;
      continue;
    }
    if (std::find(out.plain.begin(), out.plain.end(), &s) != out.plain.end()) continue;
    out.plain.push_back(&s);
    out.types &= types_of(s);
    if (const Json* all = s.find("allOf"))
      for (size_t k = 0; k < all->items().size(); ++k)
        work.push_back(&document_.child(s, fmt::format("allOf[{}]", k), all->items()[k]));
    if (const Json* ref = s.find("$ref")) work.push_back(&document_.target(s, *ref));
    for (const char* name : {"anyOf", "oneOf"})
      if (const Json* any = s.find(name)) {
        uint32_t types = 0;
        for (size_t k = 0; k < any->items().size(); ++k) {
          const Json& branch = document_.child(s, fmt::format("{}[{}]", name, k), any->items()[k]);
          document_.check(branch);
          if (branch.is_object()) types |= types_of(branch);
          if (branch.is_bool() && branch.as_bool()) types = kAllTypes;
        }
        out.types &= types;
      }
  }
  builder_.budget().work(32 * work.size());
  out.values = values_of(out.plain);
  if (out.values) {
    uint32_t types = 0;
    for (const Json& v : *out.values) types |= json_type(v);
    out.types &= types;
  }
  return out;
}

bool SchemaCompiler::objects_apart(const Summary& a, const Summary& b) {
  // Looks for a name that both must have, with values that no object can share.
  const size_t steps = steps_of_name(b.plain);
  builder_.budget().work(steps + lookups(a.plain, 1));
  for (const Json* s : a.plain) {
    const Json* required = s->find("required");
    if (required == nullptr) continue;
    for (const Json& name : required->items()) {
      builder_.budget().work(8 + steps);
      const std::string& n = name.as_string();
      if (forbids_name(b.plain, n)) return true;
      if (!requires_name(b.plain, n)) continue;
      const auto of = [&](const Summary& side) {
        Summary out;
        builder_.budget().work(steps_of_name(side.plain));
        for (const Json* plain : side.plain) {
          const Json* properties = plain->find("properties");
          const Json* own = properties != nullptr ? properties->find(n) : nullptr;
          if (own == nullptr) continue;
          Summary one = summary(document_.child(*plain, "properties." + n, *own));
          out.types &= one.types;
          if (!out.values) out.values = std::move(one.values);
        }
        return out;
      };
      const Summary left = of(a), right = of(b);
      if ((left.types & right.types) == 0) return true;
      if (left.values && right.values) {
        builder_.budget().work(left.values->size() * weight_of(*right.values));
        if (none_equal(*left.values, *right.values)) return true;
      }
    }
  }
  return false;
}

bool SchemaCompiler::apart(const Summary& a, const Summary& b) {
  const uint32_t both = a.types & b.types;
  if (both == 0) return true;
  if (a.values && b.values) {
    builder_.budget().work(a.values->size() * weight_of(*b.values));
    return none_equal(*a.values, *b.values);
  }
  const auto none_fits = [&](const Summary& named, const Summary& other) {
    return named.values &&
           std::none_of(named.values->begin(), named.values->end(), [&](const Json& v) {
             if (v.is_array() || v.is_object()) return (other.types & json_type(v)) != 0;
             return std::all_of(other.plain.begin(), other.plain.end(),
                                [&](const Json* s) { return fits(v, *s); });
           });
  };
  if (none_fits(a, b) || none_fits(b, a)) return true;
  if ((both & ~uint32_t{kNumberType}) == 0) {
    const NumberRules x = number_rules(a.plain, false), y = number_rules(b.plain, false);
    const auto below = [](const NumberRules& p, const NumberRules& q) {
      if (!p.high || !q.low) return false;
      const int order = compare(p.high->value, q.low->value);
      return order < 0 || (order == 0 && (p.high->exclusive || q.low->exclusive));
    };
    return below(x, y) || below(y, x);
  }
  return both == kObjectType && (objects_apart(a, b) || objects_apart(b, a));
}

void SchemaCompiler::check_apart(const Json& schema) {
  const Json& one = *schema.find("oneOf");
  if (!apart_.insert(&one).second) return;
  std::vector<Summary> branches;
  for (size_t i = 0; i < one.items().size(); ++i)
    branches.push_back(
        summary(document_.child(schema, fmt::format("oneOf[{}]", i), one.items()[i])));
  for (size_t i = 0; i < branches.size(); ++i)
    for (size_t k = 0; k < i; ++k) {
      builder_.budget().work(32);
      if (!apart(branches[i], branches[k]))
        document_.refuse(schema, "oneOf",
                         fmt::format("has branches that a value may satisfy both ([{}] and [{}]); "
                                     "use anyOf",
                                     k, i));
    }
}

}  // namespace moebius
