// SPDX-License-Identifier: Apache-2.0
// Implements functions that a template calls without an object.
#include <cmath>

#include "base/error.h"
#include "text/jinja/names.h"

namespace moebius::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;

Value function_raise(const Call& c) {
  fail("the template says: {}", printable(c.runtime.to_str(c.args[0]).str().text, 1000));
}

Value function_strftime(const Call& c) {
  if (!c.args[0].is_string()) fail("strftime_now needs a format");
  return c.heap().string(strftime_now(c.args[0].str().text, c.runtime.now()));
}

Value function_range(const Call& c) {
  if (c.given.positional.empty()) fail("range needs at least one argument");
  const bool one = c.given.positional.size() == 1;
  const int64_t begin = one ? 0 : index_of(c.args[0], c.name),
                end = index_of(c.args[one ? 0 : 1], c.name);
  const int64_t step = c.given.positional.size() > 2 ? index_of(c.args[2], c.name) : 1;
  if (step == 0) fail("range step must not be zero");
  if (std::abs(static_cast<double>(end) - static_cast<double>(begin)) /
          std::abs(static_cast<double>(step)) >
      static_cast<double>(kMaxRange))
    fail("a range of more than {} values", kMaxRange);
  std::vector<Value> out;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    out.push_back(Value(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  const Value range = c.heap().list(std::move(out), Value::Kind::kRange);
  range.list().start = begin;
  range.list().stop = end;
  range.list().step = step;
  return range;
}

// Implements namespace(...) and dict(...): an optional mapping, then named values.
Value function_mapping(const Call& c) {
  Dict* d = c.heap().dict();
  if (c.given.positional.size() > 1) fail("{} takes at most one positional argument", c.name);
  if (!c.given.positional.empty()) {
    const Value& first = c.given.positional[0];
    if (!first.is(Value::Kind::kDict))
      fail("{} needs a mapping, not '{}'", c.name, type_name(first));
    for (const auto& [key, value] : first.dict().items) d->set(key, value);
  }
  for (const auto& [key, value] : c.given.named) d->set(c.heap().string(key), value);
  c.heap().charge(d->items.size() * 2 * sizeof(Value));
  return Value(d, c.name == "namespace" ? Value::Kind::kNamespace : Value::Kind::kDict);
}

constexpr NamedBuiltin kFunctions[] = {
    {Named::kFunction, "dict namespace", function_mapping},
    {Named::kFunction, "raise_exception", function_raise, "message"},
    {Named::kFunction, "range", function_range, "start stop step"},
    {Named::kFunction, "strftime_now", function_strftime, "format"},
};

}  // namespace

std::span<const NamedBuiltin> function_names() { return kFunctions; }

}  // namespace moebius::jinja
