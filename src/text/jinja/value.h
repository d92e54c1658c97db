// SPDX-License-Identifier: Apache-2.0
// Holds the values of a running chat template, with Python's semantics. All values live in a Heap
// of limited size until rendering ends, so that copies are cheap, cycles are harmless and no
// destructor recurses. Strings record for each byte whether it comes from the template (trusted) or
// from the input.
#pragma once
#include <bit>
#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/json.h"

namespace moebius::jinja {

inline constexpr int kMaxNesting = 100;  // depth of values within values

struct Stmt;
struct Scope;

// Records which bytes of a text come from the template, as ranges of one origin.
class Trust {
 public:
  struct Stretch {
    size_t end;
    bool trusted;
  };
  static Trust foreign(size_t bytes) {
    Trust t;
    t.add(0, bytes, false);
    return t;
  }
  bool all() const { return stretches_.empty(); }
  // Returns runs of bytes of one origin; empty: all bytes are trusted.
  const std::vector<Stretch>& stretches() const { return stretches_; }
  bool at(size_t byte) const;
  // Records the origin of bytes appended after the first `at`.
  void add(size_t at, size_t bytes, bool trusted);
  void add(size_t at, const Trust& other, size_t begin, size_t end);

 private:
  std::vector<Stretch> stretches_;
};

struct Str {
  std::string text;  // the text, valid UTF-8
  Trust trust = {};
};

struct List;
struct Dict;
struct Function;
struct Loop;

class Value {
 public:
  // Kinds of values. kGenerator: result of a lazy filter, which can be iterated once and has no
  // length. kView: result of a dictionary's keys(), values() and items(), which can be iterated and
  // counted, but not indexed.
  enum class Kind : uint8_t {
    kUndefined,
    kNone,
    kBool,
    kInt,
    kFloat,
    kString,
    kList,
    kTuple,
    kRange,
    kGenerator,
    kView,
    kDict,
    kNamespace,
    kFunction,
    kLoop
  };
  // kind_ says which member of the union is active. Constant expressions use these functions,
  // because the compiler refuses to read another member there.
  constexpr Value() : name_(nullptr) {}
  static constexpr Value none() { return Value(Kind::kNone); }
  static constexpr Value undefined(const std::string* name = nullptr) {
    Value v;
    v.name_ = name;
    return v;
  }
  constexpr Value(bool b) : kind_(Kind::kBool), int_(b ? 1 : 0) {}
  constexpr Value(int64_t i) : kind_(Kind::kInt), int_(i) {}
  constexpr Value(double d) : kind_(Kind::kFloat), float_(d) {}
  constexpr Value(const Str* s) : kind_(Kind::kString), str_(s) {}
  constexpr Value(List* l, Kind kind = Kind::kList) : kind_(kind), list_(l) {}
  constexpr Value(Dict* d, Kind kind = Kind::kDict) : kind_(kind), dict_(d) {}
  constexpr Value(Function* f) : kind_(Kind::kFunction), function_(f) {}
  constexpr Value(Loop* l) : kind_(Kind::kLoop), loop_(l) {}

  constexpr Kind kind() const { return kind_; }
  constexpr bool is(Kind k) const { return kind_ == k; }
  bool is_undefined() const { return kind_ == Kind::kUndefined; }
  bool is_none() const { return kind_ == Kind::kNone; }
  bool is_string() const { return kind_ == Kind::kString; }
  bool is_integer() const { return kind_ == Kind::kInt || kind_ == Kind::kBool; }
  bool is_number() const { return is_integer() || kind_ == Kind::kFloat; }
  bool is_sequence() const {
    return kind_ == Kind::kList || kind_ == Kind::kTuple || kind_ == Kind::kRange;
  }

  // Returns true for values whose items are a list's, can be counted and stay.
  bool has_items() const { return is_sequence() || kind_ == Kind::kView; }

  int64_t integer() const { return int_; }
  double number() const { return kind_ == Kind::kFloat ? float_ : static_cast<double>(int_); }
  const Str& str() const { return *str_; }
  List& list() const { return *list_; }
  Dict& dict() const { return *dict_; }
  Function& function() const { return *function_; }
  Loop& loop() const { return *loop_; }
  const std::string* undefined_name() const { return name_; }
  // Returns true for the same object, not just an equal one. Numbers are the same if their bits
  // are: 0.0 is not -0.0.
  constexpr bool same(const Value& o) const;

 private:
  explicit constexpr Value(Kind k) : kind_(k), int_(0) {}
  Kind kind_ = Kind::kUndefined;
  union {
    int64_t int_;
    double float_;
    const Str* str_;
    List* list_;
    Dict* dict_;
    Function* function_;
    Loop* loop_;
    const std::string* name_;
  };
};

constexpr bool Value::same(const Value& o) const {
  if (kind_ != o.kind_) return false;
  switch (kind_) {
    case Kind::kUndefined:
      return name_ == o.name_;
    case Kind::kNone:
    case Kind::kBool:
    case Kind::kInt:
      return int_ == o.int_;
    case Kind::kFloat:
      return std::bit_cast<uint64_t>(float_) == std::bit_cast<uint64_t>(o.float_);
    case Kind::kString:
      return str_ == o.str_;
    case Kind::kDict:
    case Kind::kNamespace:
      return dict_ == o.dict_;
    case Kind::kFunction:
      return function_ == o.function_;
    case Kind::kLoop:
      return loop_ == o.loop_;
    default:
      return list_ == o.list_;
  }
}

struct List {
  std::vector<Value> items;
  int64_t start = 0, stop = 0, step = 1;  // members of a range
  std::string_view view;                  // for a view: Python's name of the type
};

// A dictionary, which keeps the order of insertion; string keys are hashed once there are many.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  Value* find(const Value& key);
  Value* find(std::string_view key);
  void set(const Value& key, Value value);
  bool erase(const Value& key);

 private:
  void index_all();
  std::unordered_map<std::string_view, size_t> index_;  // keys are views into strings of the heap
  bool indexed_ = false;
};

struct Function {
  enum class Kind : uint8_t { kBuiltin, kMethod, kMacro };
  Kind kind = Kind::kBuiltin;
  std::string name;
  Value self;                   // the object, for kMethod
  const Stmt* macro = nullptr;  // kMacro: a macro or a call block
  Scope* scope = nullptr;       // kMacro: scope of its definition
};

struct Loop {
  const std::vector<Value>* items = nullptr;
  size_t index = 0;
};

struct Scope {
  std::unordered_map<std::string_view, Value> names;  // keys are views into the syntax tree
  Scope* parent = nullptr;
};

// Owns all values of a rendering. Throws Error if their total size exceeds the limit.
class Heap {
 public:
  explicit Heap(size_t limit) : limit_(limit) {}
  void charge(size_t bytes);
  Value string(Str s);
  // Makes a string of trusted text.
  Value string(std::string_view text) { return string(Str{std::string(text)}); }
  // Returns the string of a value that has no other owner, extended by `more`.
  Value append(const Value& own, const Str& more);
  Value list(std::vector<Value> items, Value::Kind kind = Value::Kind::kList);
  Dict* dict();
  Function* function(Function f);
  Loop* loop();
  Scope* scope(Scope* parent);

 private:
  size_t used_ = 0, limit_;
  std::deque<Str> strings_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Function> functions_;
  std::deque<Loop> loops_;
  std::deque<Scope> scopes_;
};

// Builds a string from parts whose origin is known.
class StrBuilder {
 public:
  void add(const Str& s) { add(s, 0, s.text.size()); }
  void add(const Str& s, size_t begin, size_t end);
  void add(std::string_view text, bool trusted = true);
  void reserve(size_t bytes) { str_.text.reserve(bytes); }
  size_t size() const { return str_.text.size(); }
  const Str& get() const { return str_; }
  Str take() { return std::move(str_); }

 private:
  Str str_;
};
Str substr(const Str& s, size_t begin, size_t end);

// Limit the work of the current thread: each node that runs and each element that is visited costs
// a step. spend() throws Error when steps or time are used up.
void set_budget(uint64_t steps, std::chrono::nanoseconds time);
void spend(uint64_t steps = 1);
// Spends steps for bytes that are copied or compared.
void spend_bytes(size_t bytes);
// Spends steps for a search of `what` in `text`, which in the worst case compares all of it at
// every byte.
void spend_search(std::string_view text, std::string_view what);

std::string_view type_name(const Value& v);  // Python's name: "str", "int", "dict", ...
bool truth(const Value& v);
bool equal(const Value& a, const Value& b, int depth = 0);
// Throws Error for values that cannot be keys of a dictionary.
void check_hashable(const Value& v, int depth = 0);
// Returns a number less than, equal to, or greater than zero. Throws Error for types without an
// order.
int compare(const Value& a, const Value& b, int depth = 0);
// Appends str(v). Throws Error for nesting beyond a limit.
void write_str(const Value& v, StrBuilder& out);
void write_repr(const Value& v, StrBuilder& out, int depth = 0);
std::string float_repr(double d);

struct JsonStyle {
  bool ensure_ascii = false, sort_keys = false;
  std::string indent;  // text of one level of indentation, used if has_indent
  bool has_indent = false;
  std::string item_separator = ", ", key_separator = ": ";
};
void write_json(const Value& v, const JsonStyle& style, StrBuilder& out, int depth = 0);

// Converts JSON to values; their strings are untrusted unless `trusted` is set.
Value from_json(const Json& json, Heap& heap, bool trusted = false);

bool python_space(char32_t c);  // returns what Python's str.isspace does
size_t count_chars(std::string_view text);
// Returns the byte position of the index-th character, or the end.
size_t char_offset(std::string_view text, size_t index);

}  // namespace moebius::jinja
