// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/names.h"

#include <algorithm>

#include "base/error.h"

namespace moebius::jinja {
namespace {

using Kind = Value::Kind;

bool before(const NamedBuiltin& a, const NamedBuiltin& b) {
  return std::pair(a.kind, a.name) < std::pair(b.kind, b.name);
}

}  // namespace

std::span<const NamedBuiltin> builtin_names() {
  static const auto names = [] {
    std::vector<NamedBuiltin> out;
    for (const auto& rows :
         {filter_names(), test_names(), function_names(), string_names(), method_names()})
      for (NamedBuiltin row : rows)
        for (std::string_view rest = row.name; !rest.empty();) {
          row.name = rest.substr(0, rest.find(' '));
          out.push_back(row);
          rest.remove_prefix(std::min(row.name.size() + 1, rest.size()));
        }
    std::sort(out.begin(), out.end(), before);
    return out;
  }();
  return names;
}

const NamedBuiltin* find_builtin(Named kind, std::string_view name) {
  const auto names = builtin_names();
  const auto it =
      std::lower_bound(names.begin(), names.end(), NamedBuiltin{kind, name, nullptr}, before);
  return it != names.end() && it->kind == kind && it->name == name ? &*it : nullptr;
}

const NamedBuiltin* find_method(const Value& self, std::string_view name) {
  static constexpr std::pair<Kind, Named> kMethods[] = {
      {Kind::kString, Named::kString}, {Kind::kList, Named::kList}, {Kind::kDict, Named::kDict}};
  for (const auto& [kind, named] : kMethods)
    if (self.is(kind)) return find_builtin(named, name);
  return nullptr;
}

Value NamedBuiltin::call(Runtime& runtime, const Value& self, const std::string& name_as_written,
                         const Arguments& given) const {
  if (kind == Named::kString) spend(self.str().text.size() / 64);
  Call call{runtime, self, name_as_written, given};
  if (takes != nullptr) call.args = bind_arguments(name_as_written, given, takes);
  return run(call);
}

Value Runtime::filter(const std::string& name, const Value& input, const Arguments& args) {
  spend();
  const NamedBuiltin* function = find_builtin(Named::kFilter, name);
  if (function == nullptr) fail("filter '{}' is not supported", printable(name, 60));
  return function->call(*this, input, name, args);
}

bool Runtime::test(const std::string& name, const Value& input, const Arguments& args) {
  spend();
  const NamedBuiltin* function = find_builtin(Named::kTest, name);
  if (function == nullptr) fail("test '{}' is not supported", printable(name, 60));
  return truth(function->call(*this, input, name, args));
}

Value Runtime::call_method(const Value& self, const std::string& name, const Arguments& args) {
  spend();
  const NamedBuiltin* function = find_method(self, name);
  if (function == nullptr)
    fail("'{}' object has no method '{}'", type_name(self), printable(name, 60));
  return function->call(*this, self, name, args);
}

}  // namespace moebius::jinja
