// SPDX-License-Identifier: Apache-2.0
// Runs a parsed template. A Runtime renders once. Steps, memory, output and depth are limited;
// every failure is an Error with the line and column of the running expression.
#pragma once
#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/jinja/ast.h"
#include "text/jinja/value.h"

namespace moebius::jinja {

struct Limits {
  uint64_t steps = 20'000'000;
  size_t memory = size_t{256} << 20;
  size_t output = size_t{64} << 20;
  std::chrono::nanoseconds time{0};  // CPU time of this thread; 0: no limit
};

// Positional and named arguments of a call, filter or test.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
};

class Runtime {
 public:
  Runtime(std::string name, const Limits& limits, std::optional<int64_t> now);
  Heap& heap() { return heap_; }
  void define(const std::string& name, Value value);  // `name` must outlive the runtime
  Str render(const Block& block, size_t expected_bytes = 0);

  // Calls a function, macro or method; for filters, tests and methods that take one.
  Value call(const Value& callee, Arguments args);
  Value filter(const std::string& name, const Value& input, const Arguments& args);
  bool test(const std::string& name, const Value& input, const Arguments& args);
  Value call_method(const Value& self, const std::string& name, const Arguments& args);
  bool compare_op(const std::string& op, const Value& a, const Value& b);
  Value attribute(const Value& object, const std::string& name);
  Value item(const Value& object, const Value& key);
  // Returns all elements; a generator is empty afterwards. Throws Error for values that cannot be
  // iterated.
  std::vector<Value> elements(const Value& v);
  Value to_str(const Value& v);
  std::optional<int64_t> now() const { return now_; }

 private:
  enum class Flow { kNormal, kBreak, kContinue };
  Flow run(const Block& block, Scope* scope, StrBuilder& out);
  Flow run(const Stmt& s, Scope* scope, StrBuilder& out);
  Flow run_for(const Stmt& s, Scope* scope, StrBuilder& out);
  void run_set(const Stmt& s, Scope* scope, StrBuilder& out);
  void unpack(const std::vector<std::string>& targets, const Value& value, Scope* scope);
  Value captured(const Stmt& s, Scope* scope);
  void emit(const Value& v, StrBuilder& out);

  Value eval(const Expr& e, Scope* scope);
  Value eval_simple(const Expr& e, Scope* scope);
  Value eval_call(const Expr& e, Scope* scope);
  Value eval_compare(const Expr& e, Scope* scope);
  Value eval_slice(const Expr& e, Scope* scope);
  Value eval_condition(const Expr& e, Scope* scope);
  Value lookup(const std::string& name, Scope* scope);
  Arguments arguments(const Expr& e, Scope* scope);
  Value binary(const std::string& op, const Value& a, const Value& b);
  Value repeat(const Value& v, int64_t times);
  bool contains(const Value& container, const Value& v);
  Value call_macro(Function& f, Arguments args);
  Value loop_attribute(Loop& loop, const std::string& name);

  struct Deeper {
    explicit Deeper(Runtime& r);
    ~Deeper() { --runtime.depth_; }
    Runtime& runtime;
  };
  std::string name_;
  Limits limits_;
  Heap heap_;
  Scope* globals_;
  std::optional<int64_t> now_;  // seconds since 1970 UTC; absent: the clock
  SourcePosition place_;        // position of the running expression, for messages
  int depth_ = 0;
};

// Returns v as an integer. Throws Error that names `what` if it is none.
int64_t index_of(const Value& v, std::string_view what);
// Returns the arguments in order of a function's parameters `names` (separated by spaces), given by
// position or name. Throws Error for too many or unknown ones.
std::vector<Value> bind_arguments(std::string_view function, const Arguments& args,
                                  std::string_view names);
// Computes Python arithmetic (+ - * / // % **) on two numbers. Throws Error.
Value arithmetic(const std::string& op, const Value& a, const Value& b);
// Computes Python's "%s and %d" % values.
Value percent_format(Runtime& runtime, const Str& format, const std::vector<Value>& values);
std::string strftime_now(const std::string& format, std::optional<int64_t> now);
Str changed_case(const Str& s, bool upper);

}  // namespace moebius::jinja
