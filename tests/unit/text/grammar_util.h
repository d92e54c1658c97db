// SPDX-License-Identifier: Apache-2.0
// What grammars are judged by: a small validator of JSON Schema that shares nothing with them but
// the reader of JSON, and walks through grammars at random.
#pragma once
#include <string>
#include <vector>

#include "base/json.h"
#include "base/random.h"
#include "text/grammar/matcher.h"

namespace moebius::test {

// type, enum, const, properties, required, additionalProperties, minProperties, maxProperties,
// items, prefixItems, minItems, maxItems, minLength, maxLength, minimum ... exclusiveMaximum,
// multipleOf of integers, anyOf, oneOf, allOf, $ref to #/$defs. Others are not looked at.
bool validates(const Json& value, const Json& schema, const Json& root);

// Texts of the grammar by random bytes; shorter ways are preferred after `soft` bytes. Empty: none
// was found.
std::string random_text(const GrammarPtr& grammar, SplitMix64& random, size_t soft = 200);

// Bytes that must come next whatever is chosen, at most so many.
std::string forced_text(GrammarMatcher& m, size_t most);

// Schemas that use most of what is kept, for tests that need many.
const std::vector<std::string>& sample_schemas();

// What the specification names as attacks, each in one or more forms, and how it is refused.
struct SchemaAttack {
  std::string schema;
  const char* code;
  std::string path;  // of what is refused
};
const std::vector<SchemaAttack>& schema_attacks();

}  // namespace moebius::test
