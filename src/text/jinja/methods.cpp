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

}  // namespace

Value list_insert(Runtime& r, const Value& self, const std::string& name, const Arguments& args) {
  std::vector<Value>& items = self.list().items;
  const bool append = name == "append";
  const auto a = append ? bind(name, args, {"value"}) : bind(name, args, {"index", "value"});
  r.heap().charge(sizeof(Value));
  spend(items.size() / 64);
  const int64_t at = append ? static_cast<int64_t>(items.size())
                            : list_position(items, a[0], /*absent=*/0, name, /*must=*/false);
  items.insert(items.begin() + at, a.back());
  return Value::none();
}

Value list_extend(Runtime& r, const Value& self, const std::string& name, const Arguments& args) {
  const std::vector<Value> more = r.elements(bind(name, args, {"values"})[0]);
  std::vector<Value>& items = self.list().items;
  items.insert(items.end(), more.begin(), more.end());
  return Value::none();
}

Value list_pop(Runtime&, const Value& self, const std::string& name, const Arguments& args) {
  std::vector<Value>& items = self.list().items;
  if (items.empty()) fail("pop from empty list");
  const int64_t at = list_position(items, bind(name, args, {"index"})[0], -1, name, /*must=*/true);
  const Value v = items[static_cast<size_t>(at)];
  spend(items.size() / 64);
  items.erase(items.begin() + at);
  return v;
}

Value list_copy(Runtime& r, const Value& self, const std::string&, const Arguments&) {
  return r.heap().list(self.list().items);
}

Value list_reverse(Runtime&, const Value& self, const std::string&, const Arguments&) {
  spend(self.list().items.size() / 16);
  std::reverse(self.list().items.begin(), self.list().items.end());
  return Value::none();
}

Value list_count(Runtime&, const Value& self, const std::string& name, const Arguments& args) {
  const Value what = bind(name, args, {"value"})[0];
  int64_t n = 0;
  for (const Value& v : self.list().items) n += equal(v, what);
  return Value(n);
}

Value list_index(Runtime&, const Value& self, const std::string& name, const Arguments& args) {
  const Value what = bind(name, args, {"value"})[0];
  const std::vector<Value>& items = self.list().items;
  const auto it =
      std::find_if(items.begin(), items.end(), [&](const Value& v) { return equal(v, what); });
  if (it == items.end()) fail("index: the value is not in the list");
  return Value(static_cast<int64_t>(it - items.begin()));
}

Value dict_view(Runtime& r, const Value& self, const std::string& name, const Arguments& args) {
  bind(name, args, {});
  std::vector<Value> out;
  for (const auto& [k, v] : self.dict().items)
    out.push_back(name == "items" ? r.heap().list({k, v}, Kind::kTuple) : name == "keys" ? k : v);
  const Value view = r.heap().list(std::move(out), Kind::kView);
  view.list().view = name == "items" ? "dict_items" : name == "keys" ? "dict_keys" : "dict_values";
  return view;
}

Value dict_lookup(Runtime& r, const Value& self, const std::string& name, const Arguments& args) {
  Dict& dict = self.dict();
  const auto a = bind(name, args, {"key", "default"});
  const Value* found = dict.find(a[0]);
  const bool no_default = a[1].is_undefined() && a[1].undefined_name() == nullptr;
  const Value v = found != nullptr ? *found : no_default ? Value::none() : a[1];
  if (name == "pop") {
    spend(dict.items.size() / 16);
    dict.erase(a[0]);
  }
  if (name == "setdefault" && found == nullptr) dict.set(a[0], v);
  r.heap().charge(2 * sizeof(Value));
  return v;
}

Value dict_copy(Runtime& r, const Value& self, const std::string&, const Arguments&) {
  Dict* d = r.heap().dict();
  for (const auto& [k, v] : self.dict().items) d->set(k, v);
  r.heap().charge(self.dict().items.size() * 2 * sizeof(Value));
  return Value(d);
}

Value dict_update(Runtime& r, const Value& self, const std::string&, const Arguments& args) {
  if (args.positional.size() > 1) fail("update takes at most one positional argument");
  if (!args.positional.empty()) {
    if (!args.positional[0].is(Kind::kDict)) fail("update needs a mapping");
    const auto more = args.positional[0].dict().items;
    r.heap().charge(more.size() * 2 * sizeof(Value));
    for (const auto& [k, v] : more) self.dict().set(k, v);
  }
  for (const auto& [k, v] : args.named) self.dict().set(r.heap().string(k), v);
  return Value::none();
}

Value loop_cycle(Runtime&, const Value& self, const std::string&, const Arguments& args) {
  if (args.positional.empty()) fail("cycle needs at least one value");
  return args.positional[self.loop().index % args.positional.size()];
}

Value loop_changed(Runtime& r, const Value& self, const std::string&, const Arguments& args) {
  Loop& loop = self.loop();
  const Value now = r.heap().list(args.positional, Kind::kTuple);
  const bool changed = loop.changed.is_undefined() || !equal(loop.changed, now);
  loop.changed = now;
  return Value(changed);
}

}  // namespace moebius::jinja
