// SPDX-License-Identifier: Apache-2.0
// Arguments as elements that are named like them, with a mark before every tag: MiniMax-M3. Objects
// have an element for each member, lists one called "item" for each value. Strings of the first
// level are passed on as they grow, other values when whole. Elements have no types: the schema
// has them; where it says nothing, a value is JSON if it reads as such, else a string.
#include <fmt/core.h>

#include <algorithm>
#include <array>

#include "text/answer/call_parser.h"

namespace moebius {
namespace {

constexpr size_t kMostElementName = 256, kMostElementDepth = 32;
constexpr std::string_view kItem = "item";

std::string_view without_space(std::string_view s) {
  while (!s.empty() && is_json_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_json_space(s.back())) s.remove_suffix(1);
  return s;
}

// Returns the position after the element's closing tag, skipping nested elements of the same name;
// npos without a closing tag.
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

// Converts a value without elements to JSON.
std::string plain_value(std::string_view text, JsonKinds kinds) {
  const std::string_view word = without_space(text);
  if (kinds != kStringKind) {
    if (word.empty() && (kinds & (kArrayKind | kObjectKind)) != 0 && (kinds & kStringKind) == 0)
      return (kinds & kArrayKind) != 0 ? "[]" : "{}";
    if (const auto json = json_value(word))
      if (kinds == 0 || (kinds & kStringKind) == 0 || (kinds & kinds_of_json(*json)) != 0)
        return *json;
    if (kinds != 0 && (kinds & kStringKind) == 0)
      if (const auto json = python_to_json(word)) return *json;
  }
  std::string out = "\"";
  append_json_text(out, text);
  return out + "\"";
}

std::string element_value(std::string_view text, std::string_view mark, const Json& schema,
                          size_t depth) {
  const JsonKinds kinds = kinds_of_schema(schema);
  const std::string tag = std::string(mark) + "<";
  const std::string_view trimmed_text = without_space(text);
  if (!trimmed_text.starts_with(tag) || depth == 0) return plain_value(text, kinds);
  std::string members, items;
  bool list = (kinds & kArrayKind) != 0 || (kinds & kObjectKind) == 0;
  for (std::string_view rest = trimmed_text; !rest.empty(); rest = without_space(rest)) {
    if (!rest.starts_with(tag)) return plain_value(text, kinds);
    rest.remove_prefix(tag.size());
    const size_t close = rest.find('>');
    if (close == rest.npos || close > kMostElementName) return plain_value(text, kinds);
    const std::string_view name = rest.substr(0, close);
    rest.remove_prefix(close + 1);
    const size_t end = end_of_element(rest, mark, name);
    if (end == rest.npos) return plain_value(text, kinds);
    const std::string_view inner = rest.substr(0, end - mark.size() - name.size() - 3);
    rest.remove_prefix(end);
    list = list && name == kItem;
    const std::string value = element_value(inner, mark, schema_below(schema, name), depth - 1);
    items += (items.empty() ? "" : ",") + value;
    members += members.empty() ? "\"" : ",\"";
    append_json_text(members, name);
    members += "\":" + value;
  }
  return list ? "[" + items + "]" : "{" + members + "}";
}

class ElementParser final : public CallParser {
 public:
  ElementParser(const ToolFormat& format, CallSink& sink)
      : CallParser(sink), f_(format), tag_(std::string(format.separator) + "<") {}

  Take put(char c) override {
    switch (state_) {
      case State::kBetween:
        return between(c);
      case State::kName:
        return name_byte(c);
      case State::kNameEnd:
        return word(c, f_.name_end, State::kParameters);
      case State::kParameters:
        return word(c, tag_, State::kKey);
      case State::kKey:
        return key_byte(c);
      case State::kValue:
        return value_byte(c);
      case State::kCallEnd:
        return call_end(c);
    }
    return Take::kBroken;
  }

  bool finish() override { return state_ == State::kBetween && calls_ > 0 && !words_.inside(); }

 private:
  enum class State : uint8_t { kBetween, kName, kNameEnd, kParameters, kKey, kValue, kCallEnd };

  Take word(char c, std::string_view text, State then) {
    const std::array<std::string_view, 1> words = {text};
    const auto take = words_.put(c, words);
    if (take == WordMatcher::Take::kBroken) return Take::kBroken;
    if (take == WordMatcher::Take::kMore) return Take::kMore;
    if (state_ == State::kNameEnd) {
      arguments_ = 0;
      begin_call(name_, "");
    }
    state_ = then;
    key_.clear();
    return Take::kMore;
  }

  Take between(char c) {
    const std::array<std::string_view, 2> words = {f_.call_begin, f_.section_end};
    const auto take = words_.put(c, words);
    if (take == WordMatcher::Take::kBroken) return Take::kBroken;
    if (take == WordMatcher::Take::kMore) return Take::kMore;
    if (words_.word() == 1) return calls_ > 0 ? Take::kDone : Take::kBroken;
    name_.clear();
    state_ = State::kName;
    return Take::kMore;
  }

  Take name_byte(char c) {
    if (is_name_byte(c)) {
      if (name_.size() == kMostNameBytes) return Take::kBroken;
      name_ += c;
      return Take::kMore;
    }
    if (sink_.tool(name_) == nullptr) return Take::kBroken;
    state_ = State::kNameEnd;
    return put(c);
  }

  Take key_byte(char c) {
    if (c == '/' && key_.empty()) {
      state_ = State::kCallEnd;
      return Take::kMore;
    }
    if (c != '>') {
      if (key_.size() == kMostElementName || is_json_space(c)) return Take::kBroken;
      key_ += c;
      return Take::kMore;
    }
    if (key_.empty()) return Take::kBroken;
    const auto at = tool_->parameters.find(key_);
    kinds_ = at != tool_->parameters.end() ? at->second : 0;
    value_.clear();
    closing_ = fmt::format("{}</{}>", f_.separator, key_);
    string_open_ = false;
    state_ = State::kValue;
    return Take::kMore;
  }

  // Takes a byte of a value; value_ holds what was not passed on yet.
  Take value_byte(char c) {
    value_ += c;
    if (kinds_ == kStringKind) return string_byte();
    if (c != '>' || !value_.ends_with(closing_) ||
        end_of_element(value_, f_.separator, key_) == value_.npos)
      return Take::kMore;
    value_.resize(value_.size() - closing_.size());
    write_key();
    sink_.arguments(
        element_value(value_, f_.separator, schema_below(tool_->schema, key_), kMostElementDepth));
    value_.clear();
    state_ = State::kParameters;
    return Take::kMore;
  }

  Take string_byte() {
    const bool whole = value_.ends_with(closing_);
    size_t waits = whole ? closing_.size() : 0;
    for (size_t n = std::min(value_.size(), closing_.size() - 1); n > waits; --n)
      if (closing_.starts_with(std::string_view(value_).substr(value_.size() - n))) waits = n;
    if (!string_open_) {
      write_key();
      sink_.arguments("\"");
      string_open_ = true;
    }
    std::string out;
    append_json_text(out, std::string_view(value_).substr(0, value_.size() - waits));
    value_.erase(0, value_.size() - waits);
    if (whole) {
      out += '"';
      string_open_ = false;
      state_ = State::kParameters;
    }
    sink_.arguments(out);
    return Take::kMore;
  }

  void write_key() {
    std::string out = arguments_++ == 0 ? "{\"" : ",\"";
    append_json_text(out, key_);
    sink_.arguments(out + "\":");
  }

  Take call_end(char c) {
    const std::array<std::string_view, 1> words = {f_.call_end.substr(tag_.size() + 1)};
    const auto take = words_.put(c, words);
    if (take == WordMatcher::Take::kBroken) return Take::kBroken;
    if (take == WordMatcher::Take::kMore) return Take::kMore;
    sink_.arguments(arguments_ == 0 ? "{}" : "}");
    ++calls_;
    end_call();
    state_ = State::kBetween;
    return Take::kMore;
  }

  void close_arguments() override {
    std::string out;
    if (string_open_) {
      append_json_text(out, value_);
      out += '"';
    }
    sink_.arguments(out + (arguments_ == 0 ? "{}" : "}"));
  }

  const ToolFormat& f_;
  const std::string tag_;  // the element's tag up to its name
  State state_ = State::kBetween;
  WordMatcher words_;
  std::string name_, key_, value_, closing_;
  JsonKinds kinds_ = 0;
  size_t arguments_ = 0, calls_ = 0;
  bool string_open_ = false;
};

}  // namespace

std::unique_ptr<CallParser> make_element_parser(const ToolFormat& format, CallSink& sink) {
  return std::make_unique<ElementParser>(format, sink);
}

}  // namespace moebius
