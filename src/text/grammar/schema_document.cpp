// SPDX-License-Identifier: Apache-2.0
#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "text/grammar/schema.h"

namespace moebius {
namespace {

constexpr size_t kMostDepth = 64;  // levels of the document; a level of schemas takes two

struct NamedType {
  std::string_view name;
  uint32_t type;
};
constexpr NamedType kTypes[] = {{"null", kNullType},       {"boolean", kBoolType},
                                {"integer", kIntegerType}, {"number", kNumberType},
                                {"string", kStringType},   {"array", kArrayType},
                                {"object", kObjectType}};

uint32_t type_named(const Json& name) {
  if (name.is_string())
    for (const NamedType& t : kTypes)
      if (t.name == name.as_string()) return t.type;
  return 0;
}

bool is_type(const Json& name) { return type_named(name) != 0; }

// Returns whether a keyword that is not supported has a value that restricts nothing.
bool asks_for_nothing(std::string_view name, const Json& v) {
  if (name == "uniqueItems" || name == "nullable" || name == "$recursiveAnchor")
    return v.is_bool() && !v.as_bool();
  if (name == "propertyNames" || name.starts_with("unevaluated") || name == "additionalItems")
    return (v.is_bool() && v.as_bool()) || (v.is_object() && v.members().empty());
  return name.starts_with("depend") && v.is_object() && v.members().empty();
}

template <bool (*one)(const Json& item)>
bool all_items(const Json& v) {
  return v.is_array() && std::all_of(v.items().begin(), v.items().end(), one);
}

struct KnownKeyword {
  std::string_view names;     // separated by spaces
  bool (*fits)(const Json&);  // whether a value is right; null: the keyword is not supported
  std::string_view expected;  // what a right value is
};
constexpr std::string_view kANumber = "a number", kStringList = "a list of strings";
constexpr KnownKeyword kKeywords[] = {
    {"type",
     [](const Json& v) { return is_type(v) || (!v.items().empty() && all_items<is_type>(v)); },
     "the name of a type"},
    {"enum", [](const Json& v) { return v.is_array(); }, "a list"},
    {"properties patternProperties $defs definitions", [](const Json& v) { return v.is_object(); },
     "an object of schemas"},
    {"required", all_items<[](const Json& v) { return v.is_string(); }>, kStringList},
    {"additionalProperties items", [](const Json& v) { return v.is_object() || v.is_bool(); },
     "a schema"},
    {"prefixItems anyOf oneOf allOf",
     [](const Json& v) { return v.is_array() && !v.items().empty(); }, "a list of schemas"},
    {"minProperties maxProperties minItems maxItems minLength maxLength",
     [](const Json& v) {
       return v.is_number() && v.as_double() >= 0 && v.as_double() == std::floor(v.as_double());
     },
     "an integer from 0 on"},
    {"pattern format $ref", [](const Json& v) { return v.is_string(); }, "a string"},
    {"minimum maximum exclusiveMinimum exclusiveMaximum multipleOf",
     [](const Json& v) { return v.is_number() && std::isfinite(v.as_double()); }, kANumber},
    {"not if then else dependentRequired dependentSchemas dependencies unevaluatedItems "
     "unevaluatedProperties additionalItems contains minContains maxContains uniqueItems "
     "propertyNames $dynamicRef $dynamicAnchor $recursiveRef $recursiveAnchor $anchor nullable "
     "divisibleBy disallow extends",
     nullptr, ""},
};

// Returns the row of a keyword; null for annotations and const, which take any value.
const KnownKeyword* keyword_named(std::string_view name) {
  for (const KnownKeyword& known : kKeywords)
    for (std::string_view rest = known.names; !rest.empty();) {
      const std::string_view word = rest.substr(0, rest.find(' '));
      if (word == name) return &known;
      rest.remove_prefix(std::min(word.size() + 1, rest.size()));
    }
  return nullptr;
}

std::string step_path(const std::string& path, const std::string& step) {
  if (path.empty()) return step;
  return step.starts_with('[') ? path + step : path + "." + step;
}

bool equal_numbers(const Json& a, const Json& b) {
  return compare(decimal_of(a), decimal_of(b)) == 0;
}

}  // namespace

uint32_t json_type(const Json& v) {
  switch (v.kind()) {
    case Json::Kind::kNull:
      return kNullType;
    case Json::Kind::kBool:
      return kBoolType;
    case Json::Kind::kString:
      return kStringType;
    case Json::Kind::kArray:
      return kArrayType;
    case Json::Kind::kObject:
      return kObjectType;
    case Json::Kind::kDouble:
      return v.as_double() == std::floor(v.as_double()) ? kIntegerType : kFractionType;
    default:
      return kIntegerType;
  }
}

// Recursion is bounded by the document's depth.
bool json_equal(const Json& a, const Json& b) {
  if (a.kind() == Json::Kind::kUint && b.kind() == Json::Kind::kUint)
    return a.as_uint() == b.as_uint();
  if (a.is_number() && b.is_number()) return equal_numbers(a, b);
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Json::Kind::kBool:
      return a.as_bool() == b.as_bool();
    case Json::Kind::kString:
      return a.as_string() == b.as_string();
    case Json::Kind::kArray:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        json_equal);
    case Json::Kind::kObject:
      return a.members().size() == b.members().size() &&
             std::all_of(a.members().begin(), a.members().end(), [&](const Json::Member& m) {
               const Json* other = b.find(m.first);
               return other != nullptr && json_equal(m.second, *other);
             });
    default:
      return true;
  }
}

// Recursion is bounded by the document's depth.
size_t weight_of(const Json& value) {
  if (value.is_string()) return 2 + value.as_string().size() / 16;
  if (value.kind() == Json::Kind::kDouble) return 128;  // a double may have that many digits
  size_t weight = 2 + weight_of(value.items());
  for (const Json::Member& m : value.members())
    weight += 2 + m.first.size() / 16 + value.members().size() / 2 + weight_of(m.second);
  return weight;
}

size_t weight_of(const std::vector<Json>& values) {
  size_t weight = 0;
  for (const Json& v : values) weight += weight_of(v);
  return weight;
}

size_t lookups(const std::vector<const Json*>& schemas, size_t keywords) {
  size_t steps = 0;
  for (const Json* s : schemas) steps += lookups(*s, keywords);
  return steps;
}

uint32_t types_of(const Json& schema) {
  const Json* type = schema.find("type");
  if (type == nullptr) return kAllTypes;
  if (type->is_string()) return type_named(*type);
  uint32_t types = 0;
  for (const Json& t : type->items()) types |= type_named(t);
  return types;
}

std::optional<size_t> count_of(const Json& schema, std::string_view keyword) {
  const Json* v = schema.find(keyword);
  if (v == nullptr) return std::nullopt;
  return static_cast<size_t>(std::min(v->as_double(), 4e9));
}

SchemaDocument::SchemaDocument(const Json& root, std::string path, GrammarBudget& budget)
    : root_(root), budget_(budget) {
  budget_.at(path);
  std::vector<std::pair<const Json*, size_t>> work = {{&root, 1}};
  size_t least = 0;  // least bytes of the value's text
  while (!work.empty()) {
    const auto [at, depth] = work.back();
    work.pop_back();
    budget_.work(2);
    if (depth > kMostDepth) budget_.too_complex("is nested too deep");
    least += 1 + at->items().size() + (at->is_string() ? at->as_string().size() : 0);
    if (least > kMostGrammarBytes) budget_.too_complex("is longer than 64 KiB");
    for (const Json& v : at->items()) work.emplace_back(&v, depth + 1);
    for (const auto& [name, v] : at->members()) {
      least += 3 + name.size();
      work.emplace_back(&v, depth + 1);
      nested_ids_ = nested_ids_ || (at != &root && name == "$id" && v.is_string());
    }
  }
  const size_t bytes = compact_json(root).size();
  budget_.work(bytes);
  if (bytes > kMostGrammarBytes) budget_.too_complex("is longer than 64 KiB");
  paths_.emplace(&root, std::move(path));
}

const std::string& SchemaDocument::path(const Json& schema) const {
  static const std::string none;
  const auto it = paths_.find(&schema);
  return it != paths_.end() ? it->second : none;
}

std::string SchemaDocument::keyword_path(const Json& schema, std::string_view keyword) const {
  return step_path(path(schema), std::string(keyword));
}

const Json& SchemaDocument::child(const Json& schema, const std::string& step, const Json& value) {
  budget_.work(8 + step.size() / 16);
  if (!paths_.contains(&value)) paths_.emplace(&value, step_path(path(schema), step));
  return value;
}

void SchemaDocument::refuse(const Json& schema, std::string_view keyword, const std::string& why,
                            const char* code) const {
  const std::string where = keyword.empty() ? path(schema) : keyword_path(schema, keyword);
  throw GrammarError(code, (where.empty() ? "the schema" : printable(where)) + " " + why, where);
}

const Json& SchemaDocument::target(const Json& schema, const Json& reference) {
  const std::string& ref = reference.as_string();
  if (!ref.empty() && (ref[0] != '#' || (ref.size() > 1 && ref[1] != '/')))
    refuse(schema, "$ref", "leads elsewhere; only references to # and #/... are kept");
  budget_.work(ref.size() / 2);
  if (nested_ids_) refuse(schema, "$ref", "is not kept where the schema has an $id within");
  const Json* at = &root_;
  std::string where = path(root_);
  std::string_view rest = ref.empty() ? std::string_view() : std::string_view(ref).substr(1);
  while (!rest.empty()) {
    rest.remove_prefix(1);
    std::string_view raw = rest.substr(0, rest.find('/'));
    rest.remove_prefix(raw.size());
    std::string step;
    for (size_t i = 0; i < raw.size(); ++i) {
      const auto hex = [&](size_t k) {
        const char c = k < raw.size() ? raw[k] : 'x';
        return c >= '0' && c <= '9'                 ? c - '0'
               : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 87
                                                    : -1;
      };
      if (raw[i] == '%' && hex(i + 1) >= 0 && hex(i + 2) >= 0) {
        step += static_cast<char>(hex(i + 1) * 16 + hex(i + 2));
        i += 2;
      } else {
        step += raw[i];
      }
    }
    std::string name;
    for (size_t i = 0; i < step.size(); ++i) {
      if (step[i] == '~' && i + 1 < step.size() && (step[i + 1] == '0' || step[i + 1] == '1'))
        name += step[++i] == '0' ? '~' : '/';
      else
        name += step[i];
    }
    budget_.work(8 + at->members().size());
    const Json* next = at->find(name);
    std::string shown = name;
    if (next == nullptr && at->is_array() && !name.empty() && name.size() < 6 &&
        name.find_first_not_of("0123456789") == std::string::npos) {
      const size_t index = std::stoul(name);
      if (index < at->items().size()) next = &at->items()[index];
      shown = "[" + name + "]";
    }
    if (next == nullptr)
      refuse(schema, "$ref", "names what is not there: " + printable(ref, 80), "invalid_schema");
    where = step_path(where, shown);
    at = next;
  }
  paths_.emplace(at, where);
  return *at;
}

void SchemaDocument::check(const Json& schema) {
  if (!checked_.insert(&schema).second || schema.is_bool()) return;
  if (!schema.is_object())
    refuse(schema, "", fmt::format("is {}; expected a schema", kind_name(schema.kind())),
           "invalid_schema");
  for (const auto& [name, value] : schema.members()) check_keyword(schema, name, value);
}

void SchemaDocument::check_keyword(const Json& schema, const std::string& name, const Json& value) {
  budget_.work(16);
  const KnownKeyword* known = keyword_named(name);
  if (known == nullptr) return;
  if (known->fits == nullptr) {
    if (!asks_for_nothing(name, value)) refuse(schema, name, "is not kept");
    return;
  }
  if (value.is_array() && name == "items")
    refuse(schema, name, "is a list, which is not kept; use prefixItems");
  if (value.is_bool() && (known->expected == kANumber || known->expected == kStringList))
    refuse(schema, name, "is a boolean, as older drafts have it");
  if (!known->fits(value))
    refuse(schema, name,
           name == "type"
               ? "is not the name of a type, nor a list of them"
               : fmt::format("is {}; expected {}", kind_name(value.kind()), known->expected),
           "invalid_schema");
  if (name == "multipleOf" && !(value.as_double() > 0))
    refuse(schema, name, "is not above 0", "invalid_schema");
  if (name == "format" && format_expression(value.as_string()).empty())
    refuse(schema, name,
           fmt::format("is '{}', which is not kept", printable(value.as_string(), 40)));
}

}  // namespace moebius
