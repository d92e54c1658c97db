// SPDX-License-Identifier: Apache-2.0
// Declares all names that templates may use: filters, tests, functions and methods, and finds them.
// Other names are not supported.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "text/jinja/run.h"

namespace moebius::jinja {

enum class Named : uint8_t { kFilter, kTest, kFunction, kString, kList, kTuple, kDict, kLoop };

// A built-in function. `self`: the operand of a filter or test, or the object of a method. `name`:
// as written, for messages, and for names that share a function.
using Builtin = Value(Runtime& runtime, const Value& self, const std::string& name,
                      const Arguments& args);

struct NamedBuiltin {
  Named kind;
  std::string_view name;
  Builtin* run;
};
std::span<const NamedBuiltin> builtin_names();
// Returns the built-in of this name; null: there is none.
Builtin* find_builtin(Named kind, std::string_view name);
Builtin* find_method(const Value& self, std::string_view name);

// --- filters.cpp ---
Builtin filter_tojson, filter_length, filter_join, filter_default, filter_items, filter_dictsort,
    filter_sort, filter_unique, filter_map, filter_choose, filter_indent, filter_title, filter_int,
    filter_float, filter_round, filter_extreme, filter_sum, filter_reverse, filter_first,
    filter_last, filter_list, filter_string, filter_trim, filter_through_method, filter_replace,
    filter_abs, filter_attr, filter_wordcount, filter_format;
// --- tests.cpp ---
bool is_a_sequence(const Value& v);
bool is_iterable(const Value& v);
bool is_even(const Value& v);
bool is_odd(const Value& v);
Builtin test_divisible, test_case, test_same;
// --- functions.cpp ---
Builtin function_range, function_mapping, function_raise, function_strftime;
// --- methods.cpp ---
Builtin list_insert, list_extend, list_pop, list_copy, list_reverse, list_count, list_index;
Builtin dict_view, dict_lookup, dict_copy, dict_update;
Builtin loop_cycle, loop_changed;

}  // namespace moebius::jinja
