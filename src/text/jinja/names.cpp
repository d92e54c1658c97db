// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/names.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "text/jinja/string_methods.h"

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
// Rows of names that share a function, separated by spaces.
constexpr NamedBuiltin kRows[] = {
    {Named::kFilter, "abs", filter_abs},
    {Named::kFilter, "attr", filter_attr},
    {Named::kFilter, "capitalize lower upper", filter_through_method},
    {Named::kFilter, "count length", filter_length},
    {Named::kFilter, "d default", filter_default},
    {Named::kFilter, "dictsort", filter_dictsort},
    {Named::kFilter, "first", filter_first},
    {Named::kFilter, "float", filter_float},
    {Named::kFilter, "format", filter_format},
    {Named::kFilter, "indent", filter_indent},
    {Named::kFilter, "int", filter_int},
    {Named::kFilter, "items", filter_items},
    {Named::kFilter, "join", filter_join},
    {Named::kFilter, "last", filter_last},
    {Named::kFilter, "list", filter_list},
    {Named::kFilter, "map", filter_map},
    {Named::kFilter, "max min", filter_extreme},
    {Named::kFilter, "reject rejectattr select selectattr", filter_choose},
    {Named::kFilter, "replace", filter_replace},
    {Named::kFilter, "reverse", filter_reverse},
    {Named::kFilter, "round", filter_round},
    {Named::kFilter, "safe string", filter_string},
    {Named::kFilter, "sort", filter_sort},
    {Named::kFilter, "sum", filter_sum},
    {Named::kFilter, "title", filter_title},
    {Named::kFilter, "tojson", filter_tojson},
    {Named::kFilter, "trim", filter_trim},
    {Named::kFilter, "unique", filter_unique},
    {Named::kFilter, "wordcount", filter_wordcount},

    {Named::kTest, "!= ne", compares<'!', '='>},
    {Named::kTest, "< lessthan lt", compares<'<'>},
    {Named::kTest, "<= le", compares<'<', '='>},
    {Named::kTest, "== eq equalto", compares<'=', '='>},
    {Named::kTest, "> greaterthan gt", compares<'>'>},
    {Named::kTest, ">= ge", compares<'>', '='>},
    {Named::kTest, "boolean", plain<[](const Value& v) { return v.is(Kind::kBool); }>},
    {Named::kTest, "callable", plain<[](const Value& v) { return v.is(Kind::kFunction); }>},
    {Named::kTest, "defined", plain<[](const Value& v) { return !v.is_undefined(); }>},
    {Named::kTest, "divisibleby", test_divisible},
    {Named::kTest, "even", plain<is_even>},
    {Named::kTest, "false",
     plain<[](const Value& v) { return v.is(Kind::kBool) && v.integer() == 0; }>},
    {Named::kTest, "float", plain<[](const Value& v) { return v.is(Kind::kFloat); }>},
    {Named::kTest, "in", compares<'i', 'n'>},
    {Named::kTest, "integer", plain<[](const Value& v) { return v.is(Kind::kInt); }>},
    {Named::kTest, "iterable", plain<is_iterable>},
    {Named::kTest, "lower upper", test_case},
    {Named::kTest, "mapping", plain<[](const Value& v) { return v.is(Kind::kDict); }>},
    {Named::kTest, "none", plain<[](const Value& v) { return v.is_none(); }>},
    {Named::kTest, "number", plain<[](const Value& v) { return v.is_number(); }>},
    {Named::kTest, "odd", plain<is_odd>},
    {Named::kTest, "sameas", test_same},
    {Named::kTest, "sequence", plain<is_a_sequence>},
    {Named::kTest, "string", plain<[](const Value& v) { return v.is_string(); }>},
    {Named::kTest, "true",
     plain<[](const Value& v) { return v.is(Kind::kBool) && v.integer() != 0; }>},
    {Named::kTest, "undefined", plain<[](const Value& v) { return v.is_undefined(); }>},

    {Named::kFunction, "dict namespace", function_mapping},
    {Named::kFunction, "raise_exception", function_raise},
    {Named::kFunction, "range", function_range},
    {Named::kFunction, "strftime_now", function_strftime},

    {Named::kString, "capitalize", on_string<&S::capitalize>},
    {Named::kString, "count", on_string<&S::count>},
    {Named::kString, "endswith startswith", on_string<&S::affix>},
    {Named::kString, "find index rfind", on_string<&S::find>},
    {Named::kString, "format", on_string<&S::format>},
    {Named::kString, "isalnum", on_string<&S::all_of<unicode::kL | unicode::kN>>},
    {Named::kString, "isalpha", on_string<&S::all_of<unicode::kL>>},
    {Named::kString, "isdigit", on_string<&S::all_of<unicode::bit(unicode::kNd)>>},
    {Named::kString, "islower", on_string<&S::is_lower>},
    {Named::kString, "isspace", on_string<&S::is_space>},
    {Named::kString, "isupper", on_string<&S::is_upper>},
    {Named::kString, "join", on_string<&S::join>},
    {Named::kString, "ljust rjust zfill", on_string<&S::pad>},
    {Named::kString, "lower", on_string<&S::lower>},
    {Named::kString, "lstrip rstrip strip", on_string<&S::strip>},
    {Named::kString, "partition rpartition", on_string<&S::partition>},
    {Named::kString, "removeprefix removesuffix", on_string<&S::remove_affix>},
    {Named::kString, "replace", on_string<&S::replace>},
    {Named::kString, "rsplit split", on_string<&S::split>},
    {Named::kString, "splitlines", on_string<&S::splitlines>},
    {Named::kString, "title", on_string<&S::title>},
    {Named::kString, "upper", on_string<&S::upper>},

    {Named::kList, "append insert", list_insert},
    {Named::kList, "copy", list_copy},
    {Named::kList, "count", list_count},
    {Named::kList, "extend", list_extend},
    {Named::kList, "index", list_index},
    {Named::kList, "pop", list_pop},
    {Named::kList, "reverse", list_reverse},

    {Named::kTuple, "count", list_count},
    {Named::kTuple, "index", list_index},

    {Named::kDict, "copy", dict_copy},
    {Named::kDict, "get pop setdefault", dict_lookup},
    {Named::kDict, "items keys values", dict_view},
    {Named::kDict, "update", dict_update},

    {Named::kLoop, "changed", loop_changed},
    {Named::kLoop, "cycle", loop_cycle},
};

}  // namespace

namespace {

bool before(const NamedBuiltin& a, const NamedBuiltin& b) {
  return std::pair(a.kind, a.name) < std::pair(b.kind, b.name);
}

}  // namespace

std::span<const NamedBuiltin> builtin_names() {
  static const auto names = [] {
    std::vector<NamedBuiltin> out;
    for (const NamedBuiltin& row : kRows)
      for (std::string_view rest = row.name; !rest.empty();) {
        const std::string_view name = rest.substr(0, rest.find(' '));
        out.push_back({row.kind, name, row.run});
        rest.remove_prefix(std::min(name.size() + 1, rest.size()));
      }
    std::sort(out.begin(), out.end(), before);
    return out;
  }();
  return names;
}

Builtin* find_builtin(Named kind, std::string_view name) {
  const auto names = builtin_names();
  const auto it =
      std::lower_bound(names.begin(), names.end(), NamedBuiltin{kind, name, nullptr}, before);
  return it != names.end() && it->kind == kind && it->name == name ? it->run : nullptr;
}

Builtin* find_method(const Value& self, std::string_view name) {
  static constexpr std::pair<Kind, Named> kMethods[] = {{Kind::kString, Named::kString},
                                                        {Kind::kList, Named::kList},
                                                        {Kind::kTuple, Named::kTuple},
                                                        {Kind::kDict, Named::kDict},
                                                        {Kind::kLoop, Named::kLoop}};
  for (const auto& [kind, named] : kMethods)
    if (self.is(kind)) return find_builtin(named, name);
  return nullptr;
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
