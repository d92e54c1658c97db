// SPDX-License-Identifier: Apache-2.0
// Declares the tables of all names that templates may use: filters, tests, functions and methods,
// and finds them. Other names are not supported.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/run.h"

namespace moebius::jinja {

enum class Named : uint8_t { kFilter, kTest, kFunction, kString, kList, kDict };

// A call of a built-in function.
struct Call {
  Runtime& runtime;
  const Value& self;        // operand of a filter or test, or object of a method
  const std::string& name;  // as written, for messages, and for names that share a function
  const Arguments& given;
  // The arguments in the order of NamedBuiltin::takes; undefined without a name: not given.
  std::vector<Value> args = {};

  Heap& heap() const { return runtime.heap(); }
  const Str& str() const { return self.str(); }  // the object of a string's method
  Value string() const { return runtime.to_str(self); }
  const Str& text(const Value& v) const { return runtime.to_str(v).str(); }
  std::vector<Value> elements() const { return runtime.elements(self); }
};

struct NamedBuiltin {
  Named kind;
  std::string_view name;
  Value (*run)(const Call& call);
  // Names of the arguments, separated by spaces; null: any, which `run` checks.
  const char* takes = nullptr;

  Value call(Runtime& runtime, const Value& self, const std::string& name_as_written,
             const Arguments& given) const;
};

// All names, in the order of kind and name, without duplicates.
std::span<const NamedBuiltin> builtin_names();
// Returns the built-in of this name; null: there is none.
const NamedBuiltin* find_builtin(Named kind, std::string_view name);
const NamedBuiltin* find_method(const Value& self, std::string_view name);

// Rows of the file of each kind; names that share a function stand in one row, separated by spaces.
std::span<const NamedBuiltin> filter_names();
std::span<const NamedBuiltin> test_names();
std::span<const NamedBuiltin> function_names();
std::span<const NamedBuiltin> string_names();
std::span<const NamedBuiltin> method_names();  // methods of lists and dictionaries

}  // namespace moebius::jinja
