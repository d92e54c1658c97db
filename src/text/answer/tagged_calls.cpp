// SPDX-License-Identifier: Apache-2.0
// Reads calls with every argument between tags: Qwen3-Coder, GLM, Hy3, Kimi-K3, DeepSeek-V3.2 and
// V4, MiniMax-M2. Strings are passed on as they grow; what may begin the closing tag waits. Other
// types are passed on when whole.
#include <algorithm>
#include <array>

#include "text/answer/call_parser.h"

namespace moebius {
namespace {

constexpr size_t kMostKeyBytes = 256;
constexpr JsonKinds kAnyButString = kNumberKind | kBoolKind | kNullKind | kObjectKind | kArrayKind;

// Replaces the escapes in an attribute's value.
std::string unescaped(std::string text) {
  for (const auto& [word, c] : {std::pair{"&quot;", '"'}, std::pair{"&amp;", '&'}})
    for (size_t at = 0; (at = text.find(word, at)) != text.npos; ++at)
      text.replace(at, std::string_view(word).size(), 1, c);
  return text;
}

class TaggedParser final : public CallParser {
 public:
  TaggedParser(const ToolFormat& format, CallSink& sink)
      : CallParser(sink),
        f_(format),
        state_(format.call_begin.empty() ? State::kName : State::kBetween) {
    closing_ = std::string(f_.line_feed) + std::string(f_.value_end);
  }

  Take put(char c) override {
    switch (state_) {
      case State::kBetween:
        return between(c);
      case State::kName:
        return name_byte(c);
      case State::kNameEnd:
        return name_end(c);
      case State::kTagEnd:
        return tag_end(c);
      case State::kParameters:
        return parameters(c);
      case State::kKey:
        return key_byte(c);
      case State::kValueBegin:
        return expect(c, f_.value_begin, State::kValue);
      case State::kValue:
        return value_byte(c);
    }
    return Take::kBroken;
  }

  bool finish() override { return state_ == State::kBetween && calls_ > 0 && !words_.inside(); }

 private:
  enum class State : uint8_t {
    kBetween,
    kName,
    kNameEnd,
    kTagEnd,  // other attributes of the tag that has the name
    kParameters,
    kKey,
    kValueBegin,
    kValue,
  };

  Take between(char c) {
    // A call begins, or the section ends; some models write a section's marker twice.
    const std::array<std::string_view, 2> words = {f_.call_begin, f_.section_end};
    switch (words_.put(c, words)) {
      case WordMatcher::Take::kMore:
        return Take::kMore;
      case WordMatcher::Take::kBroken:
        return Take::kBroken;
      case WordMatcher::Take::kFound:
        break;
    }
    if (words_.word() == 1) return calls_ > 0 ? Take::kDone : Take::kBroken;
    state_ = State::kName;
    name_.clear();
    return Take::kMore;
  }

  Take name_byte(char c) {
    if (name_.empty() && f_.name_end.empty() && is_json_space(c)) return Take::kMore;
    if (is_name_byte(c)) {
      if (name_.size() == kMostNameBytes) return Take::kBroken;
      name_ += c;
      return Take::kMore;
    }
    if (name_.empty() || sink_.tool(name_) == nullptr) return Take::kBroken;
    if (f_.name_end.empty() && !is_json_space(c) && c != '<') return Take::kBroken;
    state_ = f_.name_end.empty() ? State::kParameters : State::kNameEnd;
    if (state_ == State::kParameters) begin();
    return put(c);
  }

  Take expect(char c, std::string_view word, State then) {
    const std::array<std::string_view, 1> words = {word};
    const auto take = words_.put(c, words);
    if (take == WordMatcher::Take::kBroken) return Take::kBroken;
    if (take == WordMatcher::Take::kMore) return Take::kMore;
    state_ = then;
    return Take::kMore;
  }

  Take name_end(char c) {
    const Take take =
        expect(c, f_.name_end, f_.tag_end.empty() ? State::kParameters : State::kTagEnd);
    if (state_ == State::kParameters) begin();
    key_.clear();
    return take;
  }

  Take tag_end(char c) {
    if (key_.size() == kMostKeyBytes) return Take::kBroken;
    key_ += c;
    if (!key_.ends_with(f_.tag_end)) return Take::kMore;
    state_ = State::kParameters;
    begin();
    return Take::kMore;
  }

  void begin() {
    arguments_ = 0;
    begin_call(name_, "");
  }

  Take parameters(char c) {
    const std::array<std::string_view, 2> words = {f_.key_begin, f_.call_end};
    const auto take = words_.put(c, words);
    if (take == WordMatcher::Take::kBroken) return Take::kBroken;
    if (take == WordMatcher::Take::kMore) return Take::kMore;
    if (words_.word() == 0) {
      state_ = State::kKey;
      key_.clear();
      return Take::kMore;
    }
    sink_.arguments(arguments_ == 0 ? "{}" : "}");
    ++calls_;
    end_call();
    state_ = State::kBetween;
    return f_.section_end.empty() ? Take::kDone : Take::kMore;
  }

  Take key_byte(char c) {
    if (key_.size() == kMostKeyBytes) return Take::kBroken;
    key_ += c;
    if (f_.type_end.empty()) {
      if (!key_.ends_with(f_.key_end)) return Take::kMore;
      key_.resize(key_.size() - f_.key_end.size());
      begin_value(kinds_of_key());
      return Take::kMore;
    }
    // The tag states whether the value is a string.
    if (!key_.ends_with(f_.type_end)) return Take::kMore;
    const std::string_view text =
        std::string_view(key_).substr(0, key_.size() - f_.type_end.size());
    const size_t at = text.rfind(f_.key_end);
    if (at == text.npos) return Take::kMore;
    const std::string_view type = text.substr(at + f_.key_end.size());
    if (type.find_first_not_of("abcdefghijklmnopqrstuvwxyz") != type.npos) return Take::kMore;
    begin_value(type == "true" || type == "string" ? kStringKind : kAnyButString);
    key_.resize(at);
    if (!f_.tag_end.empty()) key_ = unescaped(std::move(key_));
    return Take::kMore;
  }

  JsonKinds kinds_of_key() const {
    const auto at = tool_->parameters.find(key_);
    return at != tool_->parameters.end() ? at->second : 0;
  }

  void begin_value(JsonKinds kinds) {
    kinds_ = kinds;
    value_.clear();
    first_ = true;
    string_open_ = false;
    state_ = f_.value_begin.empty() ? State::kValue : State::kValueBegin;
  }

  void write_key() {
    std::string out = arguments_++ == 0 ? "{\"" : ",\"";
    append_json_text(out, key_);
    sink_.arguments(out + "\":");
  }

  // Takes a byte of a value; value_ holds what was not passed on yet.
  Take value_byte(char c) {
    value_ += c;
    if (first_ && !f_.line_feed.empty() && value_ == f_.line_feed) {
      value_.clear();
      first_ = false;
      return Take::kMore;
    }
    first_ = false;
    if (!value_.ends_with(f_.value_end)) {
      if (kinds_ == kStringKind) pass_string(value_.size() - held_back());
      return Take::kMore;
    }
    const bool line = value_.ends_with(closing_);
    value_.resize(value_.size() - (line ? closing_.size() : f_.value_end.size()));
    if (kinds_ == kStringKind) {
      pass_string(value_.size());
      sink_.arguments("\"");
      string_open_ = false;
    } else {
      const std::string json = whole_value();
      write_key();
      sink_.arguments(json);
    }
    state_ = State::kParameters;
    return Take::kMore;
  }

  // Returns the number of bytes at the end that may begin the closing tag.
  size_t held_back() const {
    for (size_t n = std::min(value_.size(), closing_.size()); n > 0; --n) {
      const std::string_view end = std::string_view(value_).substr(value_.size() - n);
      if (closing_.starts_with(end) || f_.value_end.starts_with(end)) return n;
    }
    return 0;
  }

  void pass_string(size_t bytes) {
    if (!string_open_) {
      write_key();
      sink_.arguments("\"");
      string_open_ = true;
    }
    std::string out;
    append_json_text(out, std::string_view(value_).substr(0, bytes));
    sink_.arguments(out);
    value_.erase(0, bytes);
  }

  // Returns a value that is no string, or whose type is not known, as JSON.
  std::string whole_value() const {
    std::string_view text = value_;
    while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
    const bool any = kinds_ == 0, string = (kinds_ & kStringKind) != 0;
    if (const auto json = json_value(text))
      if (any || !string || (kinds_ & kinds_of_json(*json)) != 0) return *json;
    if (!any && !string)
      if (const auto json = python_to_json(text)) return *json;
    std::string out = "\"";
    append_json_text(out, value_);
    return out + "\"";
  }

  void close_arguments() override {
    std::string out;
    if (state_ == State::kValue && string_open_) {
      append_json_text(out, value_);
      out += '"';
    }
    sink_.arguments(out + (arguments_ == 0 ? "{}" : "}"));
  }

  const ToolFormat& f_;
  State state_;
  WordMatcher words_;
  std::string name_, key_, value_, closing_;
  JsonKinds kinds_ = 0;
  size_t arguments_ = 0, calls_ = 0;
  bool first_ = true, string_open_ = false;
};

}  // namespace

std::unique_ptr<CallParser> make_tagged_parser(const ToolFormat& format, CallSink& sink) {
  return std::make_unique<TaggedParser>(format, sink);
}

}  // namespace moebius
