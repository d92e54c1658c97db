// SPDX-License-Identifier: Apache-2.0
// Converts values that stand in answers as text without types: the schema has them; where it says
// nothing, a value is JSON if it reads as such, else a string. Elements (MiniMax-M3) nest: objects
// have an element for each member, lists one called "item" for each value.
#include <fmt/core.h>

#include "text/answer/call_parser.h"

namespace moebius {
namespace {

constexpr size_t kMostElementName = 256, kMostElementDepth = 32;
constexpr std::string_view kItem = "item";

JsonKinds kinds_of_json(std::string_view json) {
  static constexpr std::pair<char, JsonKinds> kFirst[] = {{'"', kStringKind}, {'{', kObjectKind},
                                                          {'[', kArrayKind},  {'n', kNullKind},
                                                          {'t', kBoolKind},   {'f', kBoolKind}};
  for (const auto& [first, kind] : kFirst)
    if (json.front() == first) return kind;
  return kNumberKind;
}

std::string nested_value(std::string_view text, std::string_view mark, const Json& schema,
                         size_t depth) {
  const JsonKinds kinds = kinds_of_schema(schema);
  const auto plain = [&] { return typed_value(text, kinds, /*containers=*/true); };
  const std::string tag = std::string(mark) + "<";
  std::string_view rest = without_spaces(text);
  if (!rest.starts_with(tag) || depth == 0) return plain();
  std::string members, items;
  bool list = (kinds & kArrayKind) != 0 || (kinds & kObjectKind) == 0;
  for (; !rest.empty(); rest = without_spaces(rest)) {
    if (!rest.starts_with(tag)) return plain();
    rest.remove_prefix(tag.size());
    const size_t close = rest.find('>');
    if (close == rest.npos || close > kMostElementName) return plain();
    const std::string_view name = rest.substr(0, close);
    rest.remove_prefix(close + 1);
    const size_t end = end_of_element(rest, mark, name);
    if (end == rest.npos) return plain();
    const std::string_view inner = rest.substr(0, end - mark.size() - name.size() - 3);
    rest.remove_prefix(end);
    list = list && name == kItem;
    const std::string value = nested_value(inner, mark, schema_below(schema, name), depth - 1);
    const char* comma = items.empty() ? "" : ",";
    items += comma + value;
    members += comma + json_string(name) + ":" + value;
  }
  return list ? "[" + items + "]" : "{" + members + "}";
}

}  // namespace

size_t end_of_element(std::string_view text, std::string_view mark, std::string_view name) {
  const std::string open = fmt::format("{}<{}>", mark, name),
                    close = fmt::format("{}</{}>", mark, name);
  size_t at = 0;
  for (size_t depth = 1;;) {
    const size_t o = text.find(open, at), c = text.find(close, at);
    if (c == text.npos) return c;
    if (o < c) {
      ++depth;
      at = o + open.size();
      continue;
    }
    at = c + close.size();
    if (--depth == 0) return at;
  }
}

Json schema_below(const Json& schema, std::string_view key) {
  if (key == kItem)
    if (const Json* items = schema.find("items")) return *items;
  if (const Json* properties = schema.find("properties"))
    if (const Json* own = properties->find(std::string(key))) return *own;
  return {};
}

std::string typed_value(std::string_view text, JsonKinds kinds, bool containers) {
  const std::string_view word = without_spaces(text);
  const bool any = kinds == 0, string = (kinds & kStringKind) != 0;
  if (kinds == kStringKind) return json_string(text);
  if (containers && word.empty() && !string && (kinds & (kArrayKind | kObjectKind)) != 0)
    return (kinds & kArrayKind) != 0 ? "[]" : "{}";
  if (const auto json = json_value(word))
    if (any || !string || (kinds & kinds_of_json(*json)) != 0) return *json;
  if (!any && !string)
    if (const auto json = python_to_json(word)) return *json;
  return json_string(text);
}

std::string element_value(std::string_view text, std::string_view mark, const Json& schema) {
  return nested_value(text, mark, schema, kMostElementDepth);
}

}  // namespace moebius
