// SPDX-License-Identifier: Apache-2.0
// Implements methods of lists, dictionaries and loops.
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

Value list_reverse(const Call& c) {
  spend(c.self.list().items.size() / 16);
  std::reverse(c.self.list().items.begin(), c.self.list().items.end());
  return Value::none();
}

Value list_count(const Call& c) {
  const Value what = c.args[0];
  int64_t n = 0;
  for (const Value& v : c.self.list().items) n += equal(v, what);
  return Value(n);
}

Value list_index(const Call& c) {
  const Value what = c.args[0];
  const std::vector<Value>& items = c.self.list().items;
  const auto it =
      std::find_if(items.begin(), items.end(), [&](const Value& v) { return equal(v, what); });
  if (it == items.end()) fail("index: the value is not in the list");
  return Value(static_cast<int64_t>(it - items.begin()));
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
  if (c.name == "setdefault" && found == nullptr) dict.set(c.args[0], v);
  c.heap().charge(2 * sizeof(Value));
  return v;
}

Value dict_copy(const Call& c) {
  Dict* d = c.heap().dict();
  for (const auto& [k, v] : c.self.dict().items) d->set(k, v);
  c.heap().charge(c.self.dict().items.size() * 2 * sizeof(Value));
  return Value(d);
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

Value loop_cycle(const Call& c) {
  if (c.given.positional.empty()) fail("cycle needs at least one value");
  return c.given.positional[c.self.loop().index % c.given.positional.size()];
}

Value loop_changed(const Call& c) {
  Loop& loop = c.self.loop();
  const Value now = c.heap().list(c.given.positional, Kind::kTuple);
  const bool changed = loop.changed.is_undefined() || !equal(loop.changed, now);
  loop.changed = now;
  return Value(changed);
}

constexpr NamedBuiltin kMethods[] = {
    {Named::kList, "append insert", list_insert},
    {Named::kList, "copy", [](const Call& c) { return c.heap().list(c.self.list().items); }},
    {Named::kList, "count", list_count, "value"},
    {Named::kList, "extend", list_extend, "values"},
    {Named::kList, "index", list_index, "value"},
    {Named::kList, "pop", list_pop},
    {Named::kList, "reverse", list_reverse},

    {Named::kTuple, "count", list_count, "value"},
    {Named::kTuple, "index", list_index, "value"},

    {Named::kDict, "copy", dict_copy},
    {Named::kDict, "get pop setdefault", dict_lookup, "key default"},
    {Named::kDict, "items keys values", dict_view, ""},
    {Named::kDict, "update", dict_update},

    {Named::kLoop, "changed", loop_changed},
    {Named::kLoop, "cycle", loop_cycle},
};

}  // namespace

std::span<const NamedBuiltin> method_names() { return kMethods; }

}  // namespace moebius::jinja
