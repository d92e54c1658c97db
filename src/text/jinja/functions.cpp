// SPDX-License-Identifier: Apache-2.0
// Implements functions that a template calls without an object.
#include <cmath>

#include "base/error.h"
#include "text/jinja/names.h"

namespace moebius::jinja {
namespace {

constexpr int64_t kMaxRange = 100'000;

}  // namespace

Value function_raise(Runtime& r, const Value&, const std::string& name, const Arguments& args) {
  const auto a = bind(name, args, {"message"});
  fail("the template says: {}", printable(r.to_str(a[0]).str().text, 1000));
}

Value function_strftime(Runtime& r, const Value&, const std::string& name, const Arguments& args) {
  const auto a = bind(name, args, {"format"});
  if (!a[0].is_string()) fail("strftime_now needs a format");
  return r.heap().string(strftime_now(a[0].str().text, r.now()));
}

Value function_range(Runtime& r, const Value&, const std::string& name, const Arguments& args) {
  const auto a = bind(name, args, {"start", "stop", "step"});
  if (args.positional.empty()) fail("range needs at least one argument");
  const bool one = args.positional.size() == 1;
  const int64_t begin = one ? 0 : index_of(a[0], name), end = index_of(a[one ? 0 : 1], name);
  const int64_t step = args.positional.size() > 2 ? index_of(a[2], name) : 1;
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
  const Value range = r.heap().list(std::move(out), Value::Kind::kRange);
  range.list().start = begin;
  range.list().stop = end;
  range.list().step = step;
  return range;
}

// Implements namespace(...) and dict(...): an optional mapping, then named values.
Value function_mapping(Runtime& r, const Value&, const std::string& name, const Arguments& args) {
  Dict* d = r.heap().dict();
  if (args.positional.size() > 1) fail("{} takes at most one positional argument", name);
  if (!args.positional.empty()) {
    const Value& first = args.positional[0];
    if (!first.is(Value::Kind::kDict)) fail("{} needs a mapping, not '{}'", name, type_name(first));
    for (const auto& [key, value] : first.dict().items) d->set(key, value);
  }
  for (const auto& [key, value] : args.named) d->set(r.heap().string(key), value);
  r.heap().charge(d->items.size() * 2 * sizeof(Value));
  return Value(d, name == "namespace" ? Value::Kind::kNamespace : Value::Kind::kDict);
}

}  // namespace moebius::jinja
