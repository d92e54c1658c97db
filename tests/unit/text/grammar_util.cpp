// SPDX-License-Identifier: Apache-2.0
#include "unit/text/grammar_util.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

namespace moebius::test {
namespace {

bool has_type(const Json& v, const std::string& name) {
  if (name == "null") return v.is_null();
  if (name == "boolean") return v.is_bool();
  if (name == "string") return v.is_string();
  if (name == "array") return v.is_array();
  if (name == "object") return v.is_object();
  if (name == "number") return v.is_number();
  return v.is_number() && v.as_double() == std::floor(v.as_double());
}

bool same(const Json& a, const Json& b) {
  if (a.is_number() && b.is_number()) return a.as_double() == b.as_double();
  return a.kind() == b.kind() && a.dump() == b.dump();
}

size_t characters(const std::string& text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
}

bool fits_object(const Json& value, const Json& schema, const Json& root) {
  const Json* properties = schema.find("properties");
  const Json* others = schema.find("additionalProperties");
  for (const auto& [name, v] : value.members()) {
    const Json* own = properties != nullptr ? properties->find(name) : nullptr;
    if (own != nullptr ? !validates(v, *own, root)
                       : others != nullptr && !validates(v, *others, root))
      return false;
  }
  if (const Json* required = schema.find("required"))
    for (const Json& name : required->items())
      if (value.find(name.as_string()) == nullptr) return false;
  return true;
}

bool fits_array(const Json& value, const Json& schema, const Json& root) {
  const Json* prefix = schema.find("prefixItems");
  const Json* items = schema.find("items");
  for (size_t i = 0; i < value.items().size(); ++i) {
    const bool early = prefix != nullptr && i < prefix->items().size();
    const Json* own = early ? &prefix->items()[i] : items;
    if (own != nullptr && !validates(value.items()[i], *own, root)) return false;
  }
  return true;
}

}  // namespace

bool validates(const Json& value, const Json& schema, const Json& root) {
  if (schema.is_bool()) return schema.as_bool();
  const auto bounded = [&](double v, const char* low, const char* high) {
    const Json *l = schema.find(low), *h = schema.find(high);
    return (l == nullptr || v >= l->as_double()) && (h == nullptr || v <= h->as_double());
  };
  if (const Json* ref = schema.find("$ref")) {
    const std::string prefix = "#/$defs/";
    const Json& target = ref->as_string() == "#"
                             ? root
                             : *root.find("$defs")->find(ref->as_string().substr(prefix.size()));
    if (!validates(value, target, root)) return false;
  }
  if (const Json* type = schema.find("type")) {
    const bool fits =
        type->is_string()
            ? has_type(value, type->as_string())
            : std::any_of(type->items().begin(), type->items().end(),
                          [&](const Json& t) { return has_type(value, t.as_string()); });
    if (!fits) return false;
  }
  if (const Json* list = schema.find("enum"))
    if (std::none_of(list->items().begin(), list->items().end(),
                     [&](const Json& v) { return same(v, value); }))
      return false;
  if (const Json* one = schema.find("const"))
    if (!same(*one, value)) return false;
  const auto count = [&](const char* name) {
    const Json* list = schema.find(name);
    if (list == nullptr) return -1L;
    return static_cast<long>(
        std::count_if(list->items().begin(), list->items().end(),
                      [&](const Json& s) { return validates(value, s, root); }));
  };
  if (count("anyOf") == 0) return false;
  if (const long one = count("oneOf"); one != -1 && one != 1) return false;
  if (const Json* all = schema.find("allOf"))
    if (count("allOf") != static_cast<long>(all->items().size())) return false;
  if (value.is_string())
    return bounded(static_cast<double>(characters(value.as_string())), "minLength", "maxLength");
  if (value.is_number()) {
    const double v = value.as_double();
    const Json *low = schema.find("exclusiveMinimum"), *high = schema.find("exclusiveMaximum");
    const Json* multiple = schema.find("multipleOf");
    return bounded(v, "minimum", "maximum") && (low == nullptr || v > low->as_double()) &&
           (high == nullptr || v < high->as_double()) &&
           (multiple == nullptr || std::fmod(v, multiple->as_double()) == 0);
  }
  if (value.is_array())
    return bounded(static_cast<double>(value.items().size()), "minItems", "maxItems") &&
           fits_array(value, schema, root);
  if (value.is_object())
    return bounded(static_cast<double>(value.members().size()), "minProperties", "maxProperties") &&
           fits_object(value, schema, root);
  return true;
}

std::string forced_text(GrammarMatcher& m, size_t most) {
  std::string out;
  GrammarStates at = m.places(), next;
  for (int b = m.forced(at).byte; b >= 0 && out.size() < most; b = m.forced(at).byte) {
    out += static_cast<char>(b);
    m.step(at.list, static_cast<uint8_t>(b), next);
    std::swap(at, next);
  }
  return out;
}

std::string random_text(const GrammarPtr& grammar, SplitMix64& random, size_t soft) {
  GrammarMatcher m(grammar);
  std::string out;
  for (size_t n = 0; n < 4 * soft; ++n) {
    if (m.must_end() || (m.may_end() && (n > soft || random.below(4) == 0))) return out;
    std::string fits;
    for (unsigned b = 0; b < 256; ++b) {
      const char c = static_cast<char>(b);
      GrammarMatcher ahead(m);
      if (ahead.accept({&c, 1})) fits += c;
    }
    if (fits.empty()) return {};
    // Closing marks first when it grows long; text in letters mostly.
    std::string preferred;
    for (const char c : fits)
      if (n > soft ? c == '"' || c == '}' || c == ']' : c >= 'a' && c <= 'z') preferred += c;
    const std::string& from =
        !preferred.empty() && (n > soft || random.below(3) != 0) ? preferred : fits;
    const char c = from[random.below(from.size())];
    EXPECT_TRUE(m.accept({&c, 1}));
    out += c;
  }
  return {};
}

const std::vector<std::string>& sample_schemas() {
  static const std::vector<std::string> schemas = {
      R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150}},"required":["name","age"],"additionalProperties":false})",
      R"({"type":"object","properties":{"a":{"type":"boolean"},"b":{"enum":["x","y\"z",3,null]},"c":{"const":{"k":[1,"v"]}}},"required":["b"]})",
      R"({"type":"array","items":{"type":"number","exclusiveMinimum":-2.5,"maximum":10},"minItems":1,"maxItems":4})",
      R"({"type":"string","minLength":2,"maxLength":5})",
      R"({"anyOf":[{"type":"integer","multipleOf":7},{"type":"string","maxLength":3},{"type":"null"}]})",
      R"({"$defs":{"node":{"type":"object","properties":{"value":{"type":"integer"},"children":{"type":"array","items":{"$ref":"#/$defs/node"},"maxItems":2}},"required":["value","children"],"additionalProperties":false}},"$ref":"#/$defs/node"})",
      R"({"oneOf":[{"type":"object","properties":{"kind":{"const":"a"},"n":{"type":"integer"}},"required":["kind","n"],"additionalProperties":false},{"type":"object","properties":{"kind":{"const":"b"},"s":{"type":"string","maxLength":4}},"required":["kind","s"],"additionalProperties":false}]})",
      R"({"allOf":[{"type":"object","properties":{"x":{"type":"number"}},"required":["x"]},{"properties":{"x":{"minimum":1,"maximum":2},"y":{"type":"boolean"}}}],"additionalProperties":{"type":"integer"}})",
      R"({"type":"array","prefixItems":[{"type":"string","maxLength":2},{"type":"boolean"}],"items":{"type":"integer"},"maxItems":4})",
      R"({"type":"object","additionalProperties":{"type":"integer"},"minProperties":1,"maxProperties":1})",
      R"({"type":["string","null"],"maxLength":2})",
      R"({"type":"integer","exclusiveMinimum":-20,"exclusiveMaximum":20,"multipleOf":3})",
  };
  return schemas;
}

const std::vector<SchemaAttack>& schema_attacks() {
  static const std::vector<SchemaAttack> attacks = [] {
    const char *complex = "schema_too_complex", *invalid = "invalid_schema";
    // 2^30 ways: by references, by references of one value of an object, and of pairs of branches.
    std::string chain = R"({"$ref":"#/$defs/a0","$defs":{)", pairs = R"({"allOf":[)";
    for (int k = 0; k < 30; ++k) {
      chain += fmt::format(
          R"("a{0}":{{"anyOf":[{{"$ref":"#/$defs/a{1}"}},{{"$ref":"#/$defs/a{1}"}}]}},)", k, k + 1);
      pairs +=
          fmt::format(R"({}{{"anyOf":[{{"minimum":{}}},{{"maximum":{}}}]}})", k ? "," : "", k, k);
    }
    chain += R"("a30":{"type":"null"}}})";
    pairs += "]}";
    std::string within = chain;
    within.replace(0, 20, R"({"properties":{"v":{"$ref":"#/$defs/a0"}})");
    std::string many = R"({"enum":[0)", deep, arrays;
    for (int i = 1; i < 100000; ++i) many += fmt::format(",{}", i);
    for (int i = 0; i < 40; ++i) deep += R"({"properties":{"a":)", arrays += R"({"items":)";
    for (int i = 0; i < 24; ++i) arrays += R"({"items":)";
    deep += "{}" + std::string(80, '}'), arrays += "{}" + std::string(64, '}');
    // Many values under many bounds, values that are long to compare, keywords that say nothing.
    std::string bounds = R"({"allOf":[{"enum":[0)", floats = R"({"allOf":[)",
                branches = R"({"oneOf":[)", nothing = R"({"oneOf":[)";
    for (int i = 1; i < 5000; ++i) bounds += fmt::format(",{}", i);
    bounds += "]}";
    for (int i = 0; i < 1200; ++i) bounds += R"(,{"minimum":-1e300})";
    bounds += "]}";
    for (const char* sign : {"", "-"}) {
      floats += *sign != 0 ? R"(,{"enum":[0.5)" : R"({"enum":[1.5)";
      for (int i = 0; i < 1200; ++i) floats += fmt::format(",{}1.{:04}e300", sign, i);
      floats += "]}";
    }
    floats += "]}";
    for (int i = 0; i < 60; ++i) {
      branches += fmt::format(R"({}{{"enum":[{}.5)", i > 0 ? "," : "", i);
      for (int k = 0; k < 40; ++k) branches += fmt::format(",2.{:04}e299", 40 * i + k);
      branches += "]}";
    }
    branches += "]}";
    for (int i = 0; i < 300; ++i)
      nothing += fmt::format(
          R"({}{{"allOf":[{{"$ref":"#/$defs/j"}},{{"type":"integer","minimum":{},"maximum":{}}}]}})",
          i > 0 ? "," : "", 2 * i, 2 * i + 1);
    nothing += R"(],"$defs":{"j":{"x":0)";
    for (int i = 0; i < 4000; ++i) nothing += fmt::format(R"(,"x{:x}":0)", i);
    nothing += "}}}";
    return std::vector<SchemaAttack>{
        {bounds, complex, ""},
        {floats, complex, ""},
        {branches, complex, ""},
        {nothing, complex, ""},
        {chain, complex, "$defs.a16.anyOf"},
        {within, complex, "$defs.a16.anyOf"},
        {pairs, complex, "allOf"},
        {R"({"type":"string","maxLength":1000000000})", complex, "maxLength"},
        {R"({"properties":{"a":{"type":["null","string"],"maxLength":1e9}}})", complex,
         "properties.a.maxLength"},
        {R"({"items":{"type":"string","minLength":1000000000}})", complex, "items.minLength"},
        {R"({"type":"string","pattern":"(a|a)*b"})", complex, "pattern"},
        {R"({"type":"string","pattern":"^(x(?:ab|[c]|ab))+$"})", complex, "pattern"},
        {R"({"patternProperties":{"(a|a)*b":{}}})", complex, "patternProperties"},
        {R"({"type":"string","pattern":"(a|b)*a(a|b){24}$"})", complex, "pattern"},
        {R"({"type":"string","pattern":"((a{100}){100}){100}"})", complex, "pattern"},
        {R"({"type":"string","pattern":"^a*b","maxLength":1000000})", complex, "maxLength"},
        {R"({"type":"string","pattern":"(x+x+)+y","minLength":100000})", complex, "minLength"},
        {many + "]}", complex, ""},
        {deep, complex, ""},
        {arrays, complex, ""},
        {R"({"$ref":"#"})", invalid, ""},
        {R"({"properties":{"a":{"$ref":"#/properties/a"}}})", invalid, "properties.a"},
        {R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})",
         invalid, "$defs.a"},
        {R"({"anyOf":[{"type":"null"},{"$ref":"#"}]})", invalid, ""},
    };
  }();
  return attacks;
}

}  // namespace moebius::test
