// SPDX-License-Identifier: Apache-2.0
// Compiles JSON Schema (draft 2020-12) to rules. A schema is enforced completely, or refused with
// path and keyword.
//
// What a value must satisfy is a list of parts: schemas, and choices among schemas that are still
// open. Each distinct list becomes one rule, found again by its parts, so that recursive references
// end in calls of rules, and the compiler does not recurse.
#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/grammar/grammar.h"
#include "text/grammar/json_text.h"

namespace moebius {

// Bits for the kinds of JSON values. Integers count as numbers, too.
enum JsonTypes : uint32_t {
  kNullType = 1,
  kBoolType = 2,
  kIntegerType = 4,
  kFractionType = 8,  // numbers that are not integers
  kStringType = 16,
  kArrayType = 32,
  kObjectType = 64,
  kNumberType = kIntegerType | kFractionType,
  kAllTypes = 127,
};

bool json_equal(const Json& a, const Json& b);
// Returns the most steps that comparing the value with another takes.
size_t weight_of(const Json& value);
size_t weight_of(const std::vector<Json>& values);
// Returns the steps for looking up `keywords` keywords in each of these schemas.
size_t lookups(const std::vector<const Json*>& schemas, size_t keywords);
inline size_t lookups(const Json& schema, size_t keywords) {
  return keywords * (4 + schema.members().size()) / 8;
}
uint32_t json_type(const Json& value);

// Holds a schema document: finds its parts by name and path, and checks each when it is used.
class SchemaDocument {
 public:
  // Reads the document. Throws GrammarError if it is too long or too deep.
  SchemaDocument(const Json& root, std::string path, GrammarBudget& budget);

  const Json& root() const { return root_; }
  const std::string& path(const Json& schema) const;
  std::string keyword_path(const Json& schema, std::string_view keyword) const;
  // Registers a schema within another, under a keyword, and returns it.
  const Json& child(const Json& schema, const std::string& step, const Json& value);
  // Returns the schema to which a $ref leads.
  const Json& target(const Json& schema, const Json& reference);
  // Checks a schema. Throws GrammarError for unsupported keywords and wrong values; true and false
  // are always fine.
  void check(const Json& schema);
  [[noreturn]] void refuse(const Json& schema, std::string_view keyword, const std::string& why,
                           const char* code = "unsupported_keyword") const;
  GrammarBudget& budget() { return budget_; }

 private:
  void check_keyword(const Json& schema, const std::string& name, const Json& value);
  const Json& root_;
  GrammarBudget& budget_;
  std::map<const Json*, std::string> paths_;
  std::set<const Json*> checked_;
  bool nested_ids_ = false;
};

// Read keywords of checked schemas.
// Returns true if the schema forbids properties that it does not list.
inline bool forbids_others(const Json& schema) {
  const Json* others = schema.find("additionalProperties");
  return others != nullptr && others->is_bool() && !others->as_bool();
}
uint32_t types_of(const Json& schema);  // returns the allowed types; all if the schema names none
std::optional<size_t> count_of(const Json& schema, std::string_view keyword);

class SchemaCompiler {
 public:
  SchemaCompiler(GrammarBuilder& builder, const Json& schema, const std::string& path);
  GrammarBuilder::Rule compile();

 private:
  using Rule = GrammarBuilder::Rule;
  using Node = GrammarBuilder::Node;
  struct Part {
    // Kinds of parts. kPlain: a schema without its references.
    enum class Kind : uint8_t { kSchema, kPlain, kChoice };
    Kind kind = Kind::kSchema;
    const Json* json = nullptr;
    auto operator<=>(const Part&) const = default;  // NOLINT: its 0 is no pointer
  };
  using Parts = std::vector<Part>;
  struct Flat {
    std::vector<const Json*> plain;
    Parts choices;
    bool never = false;
  };
  struct Property {
    std::string name;
    bool required = false;
  };
  struct NameClass {  // the names of members that the schema does not list
    DfaPtr names;     // which names; null: all strings
    Parts parts;
  };

  // Returns a schema within another, under this step of its path, as a part.
  Part part(const Json& schema, const std::string& step, const Json& value) {
    return {Part::Kind::kSchema, &document_.child(schema, step, value)};
  }
  Rule rule_of(Parts parts);
  void check_ways(const Json& schema);
  Flat flatten(const Parts& parts);
  bool leads_to(const Json& p, const Json& q);
  void build(Rule rule, const Parts& parts);
  Node value_node(const std::vector<const Json*>& plain);
  Node enum_node(const std::vector<const Json*>& plain, const std::vector<Json>& values);
  Node const_node(const Json& value, Node next);
  Node string_node(const std::vector<const Json*>& plain);
  Node number_node(const std::vector<const Json*>& plain, bool integer);
  Node array_node(const std::vector<const Json*>& plain);
  Node object_node(const std::vector<const Json*>& plain);
  void refuse_above(const Json& schema, std::string_view keyword, std::optional<size_t> count,
                    size_t most) const;
  Node never() { return builder_.open_choice(0); }
  Rule value_rule(const Parts& parts);

  std::vector<Property> listed(const std::vector<const Json*>& plain);
  Parts parts_of_name(const std::vector<const Json*>& plain, const std::string& name);
  std::vector<NameClass> name_classes(const std::vector<const Json*>& plain,
                                      const std::vector<Property>& names);
  DfaPtr pattern_dfa(const Json& schema, std::string_view keyword, const std::string& pattern);
  NumberRules number_rules(const std::vector<const Json*>& plain, bool integer);
  bool fits(const Json& value, const Json& schema);
  void refuse_container(const Json& value, const Json& schema);
  std::optional<std::vector<Json>> values_of(const std::vector<const Json*>& plain);

  // Facts about the values of a schema that tell the schemas of oneOf apart.
  struct Summary {
    std::vector<const Json*> plain;
    uint32_t types = kAllTypes;
    std::optional<std::vector<Json>> values;
  };
  Summary summary(const Json& schema);
  bool apart(const Summary& a, const Summary& b);
  bool objects_apart(const Summary& a, const Summary& b);
  void check_apart(const Json& schema);

  GrammarBuilder& builder_;
  SchemaDocument document_;
  std::map<Parts, Rule> rules_;
  std::vector<std::pair<Rule, Parts>> waiting_;
  std::map<std::string, DfaPtr, std::less<>> patterns_;
  std::map<std::string, uint32_t, std::less<>> strings_;  // terminals for strings, by their rules
  std::map<const Json*, uint64_t> ways_;  // number of ways to satisfy each schema (check_ways)
  std::set<const Json*> apart_;           // oneOf schemas that were checked
};

}  // namespace moebius
