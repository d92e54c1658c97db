// SPDX-License-Identifier: Apache-2.0
// Tests: the word after "is".
#include <map>

#include "base/error.h"
#include "text/jinja_run.h"
#include "text/unicode.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

bool is_true(const Value& v) { return v.is(Kind::kBool) && v.integer() != 0; }
bool is_false(const Value& v) { return v.is(Kind::kBool) && v.integer() == 0; }

bool divisible(const Value& v, const Value& by) {
  return equal(arithmetic("%", v, by), Value(int64_t{0}));
}

// Tests without arguments.
std::optional<bool> plain_test(const std::string& name, const Value& v) {
  if (name == "defined") return !v.is_undefined();
  if (name == "undefined") return v.is_undefined();
  if (name == "none") return v.is_none();
  if (name == "string") return v.is_string();
  if (name == "mapping") return v.is(Kind::kDict);
  if (name == "iterable")
    return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::kDict) ||
           v.is(Kind::kGenerator);
  if (name == "sequence")
    return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::kDict);
  if (name == "boolean") return v.is(Kind::kBool);
  if (name == "true") return is_true(v);
  if (name == "false") return is_false(v);
  if (name == "number") return v.is_number();
  if (name == "integer") return v.is(Kind::kInt);
  if (name == "float") return v.is(Kind::kFloat);
  if (name == "callable") return v.is(Kind::kFunction);
  if (name == "even") return divisible(v, Value(int64_t{2}));
  if (name == "odd") return equal(arithmetic("%", v, Value(int64_t{2})), Value(int64_t{1}));
  return std::nullopt;
}

// The comparison a test with one argument stands for.
std::string comparison(const std::string& name) {
  static const std::map<std::string_view, const char*> names = {
      {"eq", "=="}, {"equalto", "=="}, {"==", "=="},      {"ne", "!="},
      {"!=", "!="}, {"lt", "<"},       {"lessthan", "<"}, {"<", "<"},
      {"le", "<="}, {"<=", "<="},      {"gt", ">"},       {"greaterthan", ">"},
      {">", ">"},   {"ge", ">="},      {">=", ">="},      {"in", "in"}};
  const auto it = names.find(name);
  return it == names.end() ? std::string() : it->second;
}

}  // namespace

bool Runtime::test(const std::string& name, const Value& input, const Arguments& args) {
  spend();
  if (const auto answer = plain_test(name, input)) {
    bind(name, args, {});
    return *answer;
  }
  if (const std::string op = comparison(name); !op.empty()) {
    if (args.positional.size() != 1) fail("test '{}' needs one argument", name);
    return compare_op(op, input, args.positional[0]);
  }
  if (name == "sameas") return input.same(bind(name, args, {"other"})[0]);
  if (name == "divisibleby") return divisible(input, bind(name, args, {"num"})[0]);
  if (name == "upper" || name == "lower")
    return truth(call_method(to_str(input), name == "upper" ? "isupper" : "islower", {}));
  fail("test '{}' is not supported", printable(name, 60));
}

}  // namespace moebius::jinja
