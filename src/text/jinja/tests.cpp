// SPDX-License-Identifier: Apache-2.0
// Implements tests, the words after "is", that are more than a line.
#include "text/jinja/names.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

bool divisible(const Value& v, const Value& by) {
  return equal(arithmetic("%", v, by), Value(int64_t{0}));
}

}  // namespace

bool is_a_sequence(const Value& v) {
  return v.is_undefined() || v.is_string() || v.is_sequence() || v.is(Kind::kDict);
}
bool is_iterable(const Value& v) {
  return is_a_sequence(v) || v.is(Kind::kGenerator) || v.is(Kind::kView);
}
bool is_even(const Value& v) { return divisible(v, Value(int64_t{2})); }
bool is_odd(const Value& v) {
  return equal(arithmetic("%", v, Value(int64_t{2})), Value(int64_t{1}));
}

Value test_same(Runtime&, const Value& v, const std::string& name, const Arguments& args) {
  return Value(v.same(bind(name, args, {"other"})[0]));
}

Value test_divisible(Runtime&, const Value& v, const std::string& name, const Arguments& args) {
  return Value(divisible(v, bind(name, args, {"num"})[0]));
}

Value test_case(Runtime& r, const Value& v, const std::string& name, const Arguments&) {
  return r.call_method(r.to_str(v), name == "upper" ? "isupper" : "islower", {});
}

}  // namespace moebius::jinja
