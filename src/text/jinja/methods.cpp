// SPDX-License-Identifier: Apache-2.0
// Implements methods of lists and dictionaries.
#include <algorithm>

#include "base/error.h"
#include "text/jinja/names.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

// Converts a position as Python counts it: a negative one counts from the end.
int64_t list_position(const std::vector<Value>& items, const Value& v, int64_t absent,
                      const std::string& name, bool must) {
  int64_t i = absent;
  if (!v.is_undefined() && !v.is_none()) {
    if (!v.is_integer()) fail("{} needs an integer, not '{}'", name, type_name(v));
    i = v.integer();
  }
  const auto n = static_cast<int64_t>(items.size());
  if (i < 0) i += n;
  if (must && (i < 0 || i >= n)) fail("{}: index out of range", name);
  return std::clamp<int64_t>(i, 0, n);
}

Value list_insert(const Call& c) {
  std::vector<Value>& items = c.self.list().items;
  const bool append = c.name == "append";
  const auto a = bind_arguments(c.name, c.given, append ? "value" : "index value");
  c.heap().charge(sizeof(Value));
  spend(items.size() / 64);
  const int64_t at = append ? static_cast<int64_t>(items.size())
                            : list_position(items, a[0], /*absent=*/0, c.name, /*must=*/false);
  items.insert(items.begin() + at, a.back());
  return Value::none();
}

Value list_extend(const Call& c) {
  const std::vector<Value> more = c.runtime.elements(c.args[0]);
  std::vector<Value>& items = c.self.list().items;
  items.insert(items.end(), more.begin(), more.end());
  return Value::none();
}

Value list_pop(const Call& c) {
  std::vector<Value>& items = c.self.list().items;
  if (items.empty()) fail("pop from empty list");
  const int64_t at =
      list_position(items, bind_arguments(c.name, c.given, "index")[0], -1, c.name, /*must=*/true);
  const Value v = items[static_cast<size_t>(at)];
  spend(items.size() / 64);
  items.erase(items.begin() + at);
  return v;
}

Value dict_view(const Call& c) {
  std::vector<Value> out;
  for (const auto& [k, v] : c.self.dict().items)
    out.push_back(c.name == "items"  ? c.heap().list({k, v}, Kind::kTuple)
                  : c.name == "keys" ? k
                                     : v);
  const Value view = c.heap().list(std::move(out), Kind::kView);
  view.list().view = c.name == "items"  ? "dict_items"
                     : c.name == "keys" ? "dict_keys"
                                        : "dict_values";
  return view;
}

Value dict_lookup(const Call& c) {
  Dict& dict = c.self.dict();
  const Value* found = dict.find(c.args[0]);
  const bool no_default = c.args[1].is_undefined() && c.args[1].undefined_name() == nullptr;
  const Value v = found != nullptr ? *found : no_default ? Value::none() : c.args[1];
  if (c.name == "pop") {
    spend(dict.items.size() / 16);
    dict.erase(c.args[0]);
  }
  return v;
}

Value dict_update(const Call& c) {
  if (c.given.positional.size() > 1) fail("update takes at most one positional argument");
  if (!c.given.positional.empty()) {
    if (!c.given.positional[0].is(Kind::kDict)) fail("update needs a mapping");
    const auto more = c.given.positional[0].dict().items;
    c.heap().charge(more.size() * 2 * sizeof(Value));
    for (const auto& [k, v] : more) c.self.dict().set(k, v);
  }
  for (const auto& [k, v] : c.given.named) c.self.dict().set(c.heap().string(k), v);
  return Value::none();
}

constexpr NamedBuiltin kMethods[] = {
    {Named::kList, "append insert", list_insert},
    {Named::kList, "extend", list_extend, "values"},
    {Named::kList, "pop", list_pop},

    {Named::kDict, "get pop", dict_lookup, "key default"},
    {Named::kDict, "items keys values", dict_view, ""},
    {Named::kDict, "update", dict_update},
};

}  // namespace

std::span<const NamedBuiltin> method_names() { return kMethods; }

}  // namespace moebius::jinja
