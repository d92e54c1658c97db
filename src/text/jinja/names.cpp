// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/names.h"

#include <map>

#include "base/error.h"
#include "text/jinja/string_methods.h"
#include "text/jinja/tests.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

template <Value (StringMethods::*method)()>
Value on_string(Runtime& r, const Value& self, const std::string& name, const Arguments& args) {
  return (StringMethods(r, self.str(), name, args).*method)();
}

// Implements a test without arguments.
template <bool (*predicate)(const Value&)>
Value plain(Runtime&, const Value& self, const std::string& name, const Arguments& args) {
  bind(name, args, {});
  return Value(predicate(self));
}

// Implements a test that is an operator of one or two characters.
template <char a, char b = 0>
Value compares(Runtime& r, const Value& self, const std::string& name, const Arguments& args) {
  static const std::string op = b == 0 ? std::string{a} : std::string{a, b};
  if (args.positional.size() != 1) fail("test '{}' needs one argument", name);
  return Value(r.compare_op(op, self, args.positional[0]));
}

using S = StringMethods;
constexpr NamedBuiltin kNames[] = {
    {Named::kFilter, "abs", filter_abs},
    {Named::kFilter, "attr", filter_attr},
    {Named::kFilter, "capitalize", filter_through_method},
    {Named::kFilter, "count", filter_length},
    {Named::kFilter, "d", filter_default},
    {Named::kFilter, "default", filter_default},
    {Named::kFilter, "dictsort", filter_dictsort},
    {Named::kFilter, "first", filter_first},
    {Named::kFilter, "float", filter_float},
    {Named::kFilter, "format", filter_format},
    {Named::kFilter, "indent", filter_indent},
    {Named::kFilter, "int", filter_int},
    {Named::kFilter, "items", filter_items},
    {Named::kFilter, "join", filter_join},
    {Named::kFilter, "last", filter_last},
    {Named::kFilter, "length", filter_length},
    {Named::kFilter, "list", filter_list},
    {Named::kFilter, "lower", filter_through_method},
    {Named::kFilter, "map", filter_map},
    {Named::kFilter, "max", filter_extreme},
    {Named::kFilter, "min", filter_extreme},
    {Named::kFilter, "reject", filter_choose},
    {Named::kFilter, "rejectattr", filter_choose},
    {Named::kFilter, "replace", filter_replace},
    {Named::kFilter, "reverse", filter_reverse},
    {Named::kFilter, "round", filter_round},
    {Named::kFilter, "safe", filter_string},
    {Named::kFilter, "select", filter_choose},
    {Named::kFilter, "selectattr", filter_choose},
    {Named::kFilter, "sort", filter_sort},
    {Named::kFilter, "string", filter_string},
    {Named::kFilter, "sum", filter_sum},
    {Named::kFilter, "title", filter_title},
    {Named::kFilter, "tojson", filter_tojson},
    {Named::kFilter, "trim", filter_trim},
    {Named::kFilter, "unique", filter_unique},
    {Named::kFilter, "upper", filter_through_method},
    {Named::kFilter, "wordcount", filter_wordcount},

    {Named::kTest, "!=", compares<'!', '='>},
    {Named::kTest, "<", compares<'<'>},
    {Named::kTest, "<=", compares<'<', '='>},
    {Named::kTest, "==", compares<'=', '='>},
    {Named::kTest, ">", compares<'>'>},
    {Named::kTest, ">=", compares<'>', '='>},
    {Named::kTest, "boolean", plain<is_boolean>},
    {Named::kTest, "callable", plain<is_callable>},
    {Named::kTest, "defined", plain<is_defined>},
    {Named::kTest, "divisibleby", test_divisible},
    {Named::kTest, "eq", compares<'=', '='>},
    {Named::kTest, "equalto", compares<'=', '='>},
    {Named::kTest, "even", plain<is_even>},
    {Named::kTest, "false", plain<is_false>},
    {Named::kTest, "float", plain<is_float>},
    {Named::kTest, "ge", compares<'>', '='>},
    {Named::kTest, "greaterthan", compares<'>'>},
    {Named::kTest, "gt", compares<'>'>},
    {Named::kTest, "in", compares<'i', 'n'>},
    {Named::kTest, "integer", plain<is_whole>},
    {Named::kTest, "iterable", plain<is_iterable>},
    {Named::kTest, "le", compares<'<', '='>},
    {Named::kTest, "lessthan", compares<'<'>},
    {Named::kTest, "lower", test_case},
    {Named::kTest, "lt", compares<'<'>},
    {Named::kTest, "mapping", plain<is_mapping>},
    {Named::kTest, "ne", compares<'!', '='>},
    {Named::kTest, "none", plain<is_nothing>},
    {Named::kTest, "number", plain<is_any_number>},
    {Named::kTest, "odd", plain<is_odd>},
    {Named::kTest, "sameas", test_same},
    {Named::kTest, "sequence", plain<is_a_sequence>},
    {Named::kTest, "string", plain<is_a_string>},
    {Named::kTest, "true", plain<is_true>},
    {Named::kTest, "undefined", plain<is_not_defined>},
    {Named::kTest, "upper", test_case},

    {Named::kFunction, "dict", function_mapping},
    {Named::kFunction, "namespace", function_mapping},
    {Named::kFunction, "raise_exception", function_raise},
    {Named::kFunction, "range", function_range},
    {Named::kFunction, "strftime_now", function_strftime},

    {Named::kString, "capitalize", on_string<&S::capitalize>},
    {Named::kString, "count", on_string<&S::count>},
    {Named::kString, "endswith", on_string<&S::affix>},
    {Named::kString, "find", on_string<&S::find>},
    {Named::kString, "format", on_string<&S::format>},
    {Named::kString, "index", on_string<&S::find>},
    {Named::kString, "isalnum", on_string<&S::is_alnum>},
    {Named::kString, "isalpha", on_string<&S::is_alpha>},
    {Named::kString, "isdigit", on_string<&S::is_digit>},
    {Named::kString, "islower", on_string<&S::is_lower>},
    {Named::kString, "isspace", on_string<&S::is_space>},
    {Named::kString, "isupper", on_string<&S::is_upper>},
    {Named::kString, "join", on_string<&S::join>},
    {Named::kString, "ljust", on_string<&S::pad>},
    {Named::kString, "lower", on_string<&S::lower>},
    {Named::kString, "lstrip", on_string<&S::strip>},
    {Named::kString, "partition", on_string<&S::partition>},
    {Named::kString, "removeprefix", on_string<&S::remove_affix>},
    {Named::kString, "removesuffix", on_string<&S::remove_affix>},
    {Named::kString, "replace", on_string<&S::replace>},
    {Named::kString, "rfind", on_string<&S::find>},
    {Named::kString, "rjust", on_string<&S::pad>},
    {Named::kString, "rpartition", on_string<&S::partition>},
    {Named::kString, "rsplit", on_string<&S::split>},
    {Named::kString, "rstrip", on_string<&S::strip>},
    {Named::kString, "split", on_string<&S::split>},
    {Named::kString, "splitlines", on_string<&S::splitlines>},
    {Named::kString, "startswith", on_string<&S::affix>},
    {Named::kString, "strip", on_string<&S::strip>},
    {Named::kString, "title", on_string<&S::title>},
    {Named::kString, "upper", on_string<&S::upper>},
    {Named::kString, "zfill", on_string<&S::pad>},

    {Named::kList, "append", list_insert},
    {Named::kList, "copy", list_copy},
    {Named::kList, "count", list_count},
    {Named::kList, "extend", list_extend},
    {Named::kList, "index", list_index},
    {Named::kList, "insert", list_insert},
    {Named::kList, "pop", list_pop},
    {Named::kList, "reverse", list_reverse},
    {Named::kTuple, "count", list_count},
    {Named::kTuple, "index", list_index},

    {Named::kDict, "copy", dict_copy},
    {Named::kDict, "get", dict_lookup},
    {Named::kDict, "items", dict_view},
    {Named::kDict, "keys", dict_view},
    {Named::kDict, "pop", dict_lookup},
    {Named::kDict, "setdefault", dict_lookup},
    {Named::kDict, "update", dict_update},
    {Named::kDict, "values", dict_view},

    {Named::kLoop, "changed", loop_changed},
    {Named::kLoop, "cycle", loop_cycle},
};

}  // namespace

std::span<const NamedBuiltin> builtin_names() { return kNames; }

Builtin* find_builtin(Named kind, std::string_view name) {
  static const auto index = [] {
    std::map<std::pair<Named, std::string_view>, Builtin*> out;
    for (const NamedBuiltin& b : kNames) out.emplace(std::pair(b.kind, b.name), b.run);
    return out;
  }();
  const auto it = index.find({kind, name});
  return it == index.end() ? nullptr : it->second;
}

Builtin* find_method(const Value& self, std::string_view name) {
  switch (self.kind()) {
    case Kind::kString:
      return find_builtin(Named::kString, name);
    case Kind::kList:
      return find_builtin(Named::kList, name);
    case Kind::kTuple:
      return find_builtin(Named::kTuple, name);
    case Kind::kDict:
      return find_builtin(Named::kDict, name);
    case Kind::kLoop:
      return find_builtin(Named::kLoop, name);
    default:
      return nullptr;
  }
}

Value Runtime::filter(const std::string& name, const Value& input, const Arguments& args) {
  spend();
  Builtin* function = find_builtin(Named::kFilter, name);
  if (function == nullptr) fail("filter '{}' is not supported", printable(name, 60));
  return function(*this, input, name, args);
}

bool Runtime::test(const std::string& name, const Value& input, const Arguments& args) {
  spend();
  Builtin* function = find_builtin(Named::kTest, name);
  if (function == nullptr) fail("test '{}' is not supported", printable(name, 60));
  return truth(function(*this, input, name, args));
}

Value Runtime::call_method(const Value& self, const std::string& name, const Arguments& args) {
  spend();
  Builtin* function = find_method(self, name);
  if (function == nullptr)
    fail("'{}' object has no method '{}'", type_name(self), printable(name, 60));
  return function(*this, self, name, args);
}

}  // namespace moebius::jinja
