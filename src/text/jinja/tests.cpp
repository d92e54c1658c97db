// SPDX-License-Identifier: Apache-2.0
// Implements tests, the words after "is".
#include "base/error.h"
#include "text/jinja/names.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

// Implements a test without arguments.
template <bool (*predicate)(const Value&)>
Value plain(const Call& c) {
  return Value(predicate(c.self));
}

// Implements a test that is an operator of one or two characters.
template <char a, char b = 0>
Value compares(const Call& c) {
  static const std::string op = b == 0 ? std::string{a} : std::string{a, b};
  if (c.given.positional.size() != 1) fail("test '{}' needs one argument", c.name);
  return Value(c.runtime.compare_op(op, c.self, c.given.positional[0]));
}

// Returns whether the rest of a division is `rest`.
bool leaves(const Value& v, const Value& by, int64_t rest) {
  return equal(arithmetic("%", v, by), Value(rest));
}

bool is_a_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::kDict);
}

constexpr NamedBuiltin kTests[] = {
    {Named::kTest, "!= ne", compares<'!', '='>},
    {Named::kTest, "< lessthan lt", compares<'<'>},
    {Named::kTest, "<= le", compares<'<', '='>},
    {Named::kTest, "== eq equalto", compares<'=', '='>},
    {Named::kTest, "> greaterthan gt", compares<'>'>},
    {Named::kTest, ">= ge", compares<'>', '='>},
    {Named::kTest, "boolean", plain<[](const Value& v) { return v.is(Kind::kBool); }>, ""},
    {Named::kTest, "defined", plain<[](const Value& v) { return !v.is_undefined(); }>, ""},
    {Named::kTest, "divisibleby", [](const Call& c) { return Value(leaves(c.self, c.args[0], 0)); },
     "num"},
    {Named::kTest, "even", plain<[](const Value& v) { return leaves(v, int64_t{2}, 0); }>, ""},
    {Named::kTest, "false",
     plain<[](const Value& v) { return v.is(Kind::kBool) && v.integer() == 0; }>, ""},
    {Named::kTest, "float", plain<[](const Value& v) { return v.is(Kind::kFloat); }>, ""},
    {Named::kTest, "in", compares<'i', 'n'>},
    {Named::kTest, "integer", plain<[](const Value& v) { return v.is(Kind::kInt); }>, ""},
    {Named::kTest, "iterable", plain<[](const Value& v) {
       return is_a_sequence(v) || v.is(Kind::kGenerator) || v.is(Kind::kView);
     }>,
     ""},
    {Named::kTest, "mapping", plain<[](const Value& v) { return v.is(Kind::kDict); }>, ""},
    {Named::kTest, "none", plain<[](const Value& v) { return v.is_none(); }>, ""},
    {Named::kTest, "number", plain<[](const Value& v) { return v.is_number(); }>, ""},
    {Named::kTest, "odd", plain<[](const Value& v) { return leaves(v, int64_t{2}, 1); }>, ""},
    {Named::kTest, "sequence", plain<is_a_sequence>, ""},
    {Named::kTest, "string", plain<[](const Value& v) { return v.is_string(); }>, ""},
    {Named::kTest, "true",
     plain<[](const Value& v) { return v.is(Kind::kBool) && v.integer() != 0; }>, ""},
    {Named::kTest, "undefined", plain<[](const Value& v) { return v.is_undefined(); }>, ""},
};

}  // namespace

std::span<const NamedBuiltin> test_names() { return kTests; }

}  // namespace moebius::jinja
