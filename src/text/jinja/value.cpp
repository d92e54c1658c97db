// SPDX-License-Identifier: Apache-2.0
// Implements the heap, dictionaries, and comparison and conversion of values.
#include "text/jinja/value.h"

#include <time.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/unicode.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

void check_nesting(int depth) {
  if (depth > kMaxNesting) fail("values are nested deeper than {}", kMaxNesting);
}

constexpr uint64_t kStepsPerLook = 1024;  // steps between two looks at the clock
constexpr size_t kBytesPerStep = 64;
constexpr size_t kBytesOfAdding = 16;  // cost of appending to a text beside its bytes

thread_local uint64_t allowed = 0, budget = 0, next_look = 0;
thread_local size_t bytes_spent = 0;  // bytes that are less than a step
thread_local std::chrono::nanoseconds allowed_time{0}, deadline{0};

// Returns the thread's CPU time: time that others take on a busy machine does not count.
std::chrono::nanoseconds cpu_time() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return std::chrono::seconds(t.tv_sec) + std::chrono::nanoseconds(t.tv_nsec);
}

}  // namespace

void set_budget(uint64_t steps, std::chrono::nanoseconds time) {
  allowed = budget = steps;
  const bool timed = time.count() > 0;
  allowed_time = time;
  deadline = timed ? cpu_time() + time : time;
  next_look = timed ? budget : 0;
}

void spend(uint64_t steps) {
  if (steps > budget) fail("the template takes too many steps (limit: {})", allowed);
  budget -= steps;
  if (budget >= next_look) return;
  next_look = budget - std::min(budget, kStepsPerLook);
  if (cpu_time() > deadline)
    fail("the template takes too long (limit: {} ms of CPU time)",
         allowed_time.count() / 1'000'000);
}

void spend_bytes(size_t bytes) {
  bytes_spent += bytes;
  if (bytes_spent < kBytesPerStep) return;
  spend(bytes_spent / kBytesPerStep);
  bytes_spent %= kBytesPerStep;
}

void spend_search(std::string_view text, std::string_view what) {
  if (what.size() <= text.size())
    spend(text.size() / 16 + (text.size() - what.size()) / 64 * what.size() / 64);
}

// --- heap ----------------------------------------------------------------------------------------

void Heap::charge(size_t bytes) {
  used_ += bytes;
  if (used_ > limit_) fail("the template needs more than {} MB", limit_ >> 20);
}

Value Heap::string(Str s) {
  charge(s.text.size() + s.trust.stretches().size() * sizeof(Trust::Stretch) + 96);
  return Value(&strings_.emplace_back(std::move(s)));
}

Value Heap::append(const Value& own, const Str& more) {
  spend_bytes(more.text.size() + kBytesOfAdding);
  charge(more.text.size() + more.trust.stretches().size() * sizeof(Trust::Stretch));
  auto& s = const_cast<Str&>(own.str());
  s.trust.add(s.text.size(), more.trust, 0, more.text.size());
  s.text += more.text;
  return own;
}

Value Heap::list(std::vector<Value> items, Kind kind) {
  charge(items.size() * sizeof(Value) + 64);
  List& l = lists_.emplace_back();
  l.items = std::move(items);
  return Value(&l, kind);
}

Dict* Heap::dict() {
  charge(160);
  return &dicts_.emplace_back();
}

Function* Heap::function(Function f) {
  charge(128);
  return &functions_.emplace_back(std::move(f));
}

Loop* Heap::loop() {
  charge(64);
  return &loops_.emplace_back();
}

Scope* Heap::scope(Scope* parent) {
  charge(128);
  Scope& s = scopes_.emplace_back();
  s.parent = parent;
  return &s;
}

// --- strings -------------------------------------------------------------------------------------

bool Trust::at(size_t byte) const {
  const auto stretch = std::upper_bound(stretches_.begin(), stretches_.end(), byte,
                                        [](size_t b, const Stretch& s) { return b < s.end; });
  return stretch == stretches_.end() || stretch->trusted;
}

void Trust::add(size_t at, size_t bytes, bool trusted) {
  if (bytes == 0 || (trusted && all())) return;
  if (all() && at > 0) stretches_.push_back({at, true});
  if (!all() && stretches_.back().trusted == trusted)
    stretches_.back().end = at + bytes;
  else
    stretches_.push_back({at + bytes, trusted});
}

void Trust::add(size_t at, const Trust& other, size_t begin, size_t end) {
  if (other.all()) return add(at, end - begin, true);
  for (const Stretch& s : other.stretches_) {
    if (s.end <= begin) continue;
    const size_t bytes = std::min(s.end, end) - begin;
    add(at, bytes, s.trusted);
    at += bytes;
    begin += bytes;
    if (begin == end) break;
  }
}

void StrBuilder::add(const Str& s, size_t begin, size_t end) {
  spend_bytes(end - begin + kBytesOfAdding);
  str_.trust.add(str_.text.size(), s.trust, begin, end);
  str_.text.append(s.text, begin, end - begin);
}

void StrBuilder::add(std::string_view text, bool trusted) {
  spend_bytes(text.size() + kBytesOfAdding);
  str_.trust.add(str_.text.size(), text.size(), trusted);
  str_.text += text;
}

Str substr(const Str& s, size_t begin, size_t end) {
  spend_bytes(end - begin + kBytesOfAdding);
  Str out{s.text.substr(begin, end - begin)};
  out.trust.add(0, s.trust, begin, end);
  return out;
}

bool python_space(char32_t c) {
  return (c >= 0x1c && c <= 0x1f) || unicode::Table::get().is_space(c);
}

size_t count_chars(std::string_view text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  }));
}

size_t char_offset(std::string_view text, size_t index) {
  size_t i = 0;
  for (; i < text.size(); ++i)
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80 && index-- == 0) break;
  return i;
}

// --- dictionaries --------------------------------------------------------------------------------

void Dict::index_all() {
  spend(6 * items.size());
  index_.clear();
  for (size_t i = 0; i < items.size(); ++i)
    if (items[i].first.is_string()) index_.emplace(items[i].first.str().text, i);
  indexed_ = true;
}

Value* Dict::find(std::string_view key) {
  spend_bytes(key.size());
  if (items.size() > 16) {
    if (!indexed_) index_all();
    const auto it = index_.find(key);
    return it == index_.end() ? nullptr : &items[it->second].second;
  }
  for (auto& [k, v] : items)
    if (k.is_string() && k.str().text == key) return &v;
  return nullptr;
}

Value* Dict::find(const Value& key) {
  if (key.is_string()) return find(key.str().text);
  for (auto& [k, v] : items)
    if (!k.is_string() && equal(k, key)) return &v;
  return nullptr;
}

void Dict::set(const Value& key, Value value) {
  if (Value* old = find(key)) {
    *old = value;
    return;
  }
  items.emplace_back(key, value);
  if (indexed_ && key.is_string()) index_.emplace(key.str().text, items.size() - 1);
}

bool Dict::erase(const Value& key) {
  const Value* at = find(key);
  if (at == nullptr) return false;
  std::erase_if(items, [&](const auto& item) { return &item.second == at; });
  indexed_ = false;
  return true;
}

// --- meaning -------------------------------------------------------------------------------------

std::string_view type_name(const Value& v) {
  static constexpr std::string_view kNames[] = {
      "Undefined", "NoneType",  "bool", "int",  "float",     "str",      "list",       "tuple",
      "range",     "generator", "view", "dict", "Namespace", "function", "LoopContext"};
  static_assert(std::size(kNames) == static_cast<size_t>(Kind::kLoop) + 1);
  return v.is(Kind::kView) ? v.list().view : kNames[static_cast<size_t>(v.kind())];
}

bool truth(const Value& v) {
  if (v.is_undefined() || v.is_none()) return false;
  if (v.is_number()) return v.is(Kind::kFloat) ? v.number() != 0 : v.integer() != 0;
  if (v.is_string()) return !v.str().text.empty();
  if (v.has_items()) return !v.list().items.empty();
  return !v.is(Kind::kDict) || !v.dict().items.empty();
}

bool equal(const Value& a, const Value& b, int depth) {
  check_nesting(depth);
  spend();
  if (a.is_number() && b.is_number()) {
    if (a.is_integer() && b.is_integer()) return a.integer() == b.integer();
    return a.number() == b.number();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kUndefined:
    case Kind::kNone:
      return true;
    case Kind::kString:
      spend_bytes(a.str().text.size() == b.str().text.size() ? a.str().text.size() : 0);
      return a.str().text == b.str().text;
    case Kind::kList:
    case Kind::kTuple:
    case Kind::kRange: {
      const auto &x = a.list().items, &y = b.list().items;
      return x.size() == y.size() &&
             std::equal(x.begin(), x.end(), y.begin(),
                        [&](const Value& p, const Value& q) { return equal(p, q, depth + 1); });
    }
    case Kind::kView: {  // keys and items compare as sets; a view of values equals only itself
      const List &x = a.list(), &y = b.list();
      if (&x == &y || x.view == "dict_values") return &x == &y;
      return x.view == y.view && x.items.size() == y.items.size() &&
             std::all_of(x.items.begin(), x.items.end(), [&](const Value& p) {
               return std::any_of(y.items.begin(), y.items.end(),
                                  [&](const Value& q) { return equal(p, q, depth + 1); });
             });
    }
    case Kind::kDict: {
      if (a.dict().items.size() != b.dict().items.size()) return false;
      for (const auto& [k, v] : a.dict().items) {
        const Value* other = b.dict().find(k);
        if (other == nullptr || !equal(v, *other, depth + 1)) return false;
      }
      return true;
    }
    default:
      return a.same(b);
  }
}

void check_hashable(const Value& v, int depth) {
  const bool set = v.is(Kind::kView) && v.list().view != "dict_values";
  if (v.is(Kind::kList) || v.is(Kind::kDict) || set || depth > kMaxNesting)
    fail("unhashable type: '{}'", type_name(v));
  if (v.is(Kind::kTuple))
    for (const Value& item : v.list().items) check_hashable(item, depth + 1);
}

int compare(const Value& a, const Value& b, int depth) {
  check_nesting(depth);
  spend();
  if (a.is_integer() && b.is_integer())
    return a.integer() < b.integer() ? -1 : a.integer() > b.integer() ? 1 : 0;
  if (a.is_number() && b.is_number())
    return a.number() < b.number() ? -1 : a.number() > b.number() ? 1 : 0;
  if (a.is_string() && b.is_string()) {
    spend_bytes(std::min(a.str().text.size(), b.str().text.size()));
    return a.str().text.compare(b.str().text);
  }
  if (a.kind() == b.kind() && a.is_sequence() && !a.is(Kind::kRange)) {
    const auto &x = a.list().items, &y = b.list().items;
    for (size_t i = 0; i < x.size() && i < y.size(); ++i)
      if (!equal(x[i], y[i], depth + 1)) return compare(x[i], y[i], depth + 1);
    return x.size() < y.size() ? -1 : x.size() > y.size() ? 1 : 0;
  }
  fail("'{}' and '{}' cannot be ordered", type_name(a), type_name(b));
}

Value from_json(const Json& json, Heap& heap, bool trusted) {
  switch (json.kind()) {
    case Json::Kind::kNull:
      return Value::none();
    case Json::Kind::kBool:
      return Value(json.as_bool());
    case Json::Kind::kInt:
    case Json::Kind::kUint:
      if (const auto i = json.as_int()) return Value(*i);
      return Value(json.as_double());
    case Json::Kind::kDouble:
      return Value(json.as_double());
    case Json::Kind::kString:
      return heap.string(
          {json.as_string(), trusted ? Trust() : Trust::foreign(json.as_string().size())});
    case Json::Kind::kArray: {
      std::vector<Value> items;
      for (const Json& j : json.items()) items.push_back(from_json(j, heap, trusted));
      return heap.list(std::move(items));
    }
    case Json::Kind::kObject: {
      Dict* d = heap.dict();
      for (const auto& [key, value] : json.members())
        d->set(from_json(Json(key), heap, trusted), from_json(value, heap, trusted));
      heap.charge(json.members().size() * 2 * sizeof(Value));
      return Value(d);
    }
  }
  return Value::none();
}

}  // namespace moebius::jinja
