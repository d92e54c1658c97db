// SPDX-License-Identifier: Apache-2.0
// Reads Gemma-4's calls, call:f{a:<|"|>x<|"|>,b:[1,true]}: objects with bare keys, strings between
// marks of their own that are not escaped. Strings are passed on as they grow, other values when
// whole.
#include <algorithm>

#include "text/answer/call_parser.h"

namespace moebius {
namespace {

constexpr std::string_view kCallWord = "call:", kStringMark = "<|\"|>";
constexpr size_t kMostGemmaKey = 256, kMostGemmaDepth = 32;

std::string_view without_marks(std::string_view key) {
  while (!key.empty() && is_json_space(key.back())) key.remove_suffix(1);
  if (key.starts_with(kStringMark) && key.ends_with(kStringMark) &&
      key.size() >= 2 * kStringMark.size()) {
    key.remove_prefix(kStringMark.size());
    key.remove_suffix(kStringMark.size());
  }
  return key;
}

class GemmaParser final : public CallParser {
 public:
  GemmaParser(const ToolFormat& format, CallSink& sink) : CallParser(sink), f_(format) {}

  Take put(char c) override {
    switch (state_) {
      case State::kBegin:
        return word(c, kCallWord, State::kName);
      case State::kName:
        return name_byte(c);
      case State::kKey:
        return key_byte(c);
      case State::kValue:
        return value_byte(c);
      case State::kMark:
        return mark_byte(c);
      case State::kString:
        return string_byte(c);
      case State::kScalar:
        return scalar_byte(c);
      case State::kAfter:
        return after(c);
      case State::kEnd: {
        const Take take = word(c, f_.section_end, State::kDone);
        return state_ == State::kDone ? Take::kDone : take;
      }
      case State::kDone:
        break;
    }
    return Take::kBroken;
  }

  bool finish() override { return state_ == State::kEnd && !words_.inside(); }

 private:
  enum class State : uint8_t {
    kBegin,
    kName,
    kKey,  // at a key or the end of an object
    kValue,
    kMark,  // within the mark that begins a string
    kString,
    kScalar,
    kAfter,  // after a value
    kEnd,    // at the end of the call
    kDone,
  };

  Take word(char c, std::string_view text, State then) {
    const std::string_view words[] = {text};
    const auto take = words_.put(c, words);
    if (take == WordMatcher::Take::kFound) state_ = then;
    return take == WordMatcher::Take::kBroken ? Take::kBroken : Take::kMore;
  }

  Take name_byte(char c) {
    if (is_name_byte(c)) {
      if (name_.size() == kMostNameBytes) return Take::kBroken;
      name_ += c;
      return Take::kMore;
    }
    if (c != '{' || !begin_call(name_, "")) return Take::kBroken;
    return open(c);
  }

  Take open(char c) {
    if (stack_.size() == kMostGemmaDepth) return Take::kBroken;
    write({&c, 1});
    stack_ += c;
    first_ = true;
    text_.clear();
    state_ = c == '{' ? State::kKey : State::kValue;
    return Take::kMore;
  }

  // Passes on a value, or its beginning, together with the key before it.
  void write(std::string_view json) {
    if (!stack_.empty()) {
      std::string out = first_ ? "" : ",";
      if (stack_.back() == '{') {
        out += '"';
        append_json_text(out, key_);
        out += "\":";
      }
      sink_.arguments(out);
      first_ = false;
    }
    sink_.arguments(json);
  }

  Take key_byte(char c) {
    if (text_.empty() && is_json_space(c)) return Take::kMore;
    if (text_.empty() && c == '}') return close_container(c);
    if (c == ':') {
      key_ = without_marks(text_);
      state_ = State::kValue;
      return key_.empty() ? Take::kBroken : Take::kMore;
    }
    if (text_.size() == kMostGemmaKey) return Take::kBroken;
    text_ += c;
    return Take::kMore;
  }

  Take value_byte(char c) {
    if (is_json_space(c)) return Take::kMore;
    if (c == '{' || c == '[') return open(c);
    if (c == ']' && first_ && stack_.back() == '[') return close_container(c);
    if (c == ',' || c == ']' || c == '}') return Take::kBroken;
    text_.clear();
    state_ = c == kStringMark[0] ? State::kMark : State::kScalar;
    return put(c);
  }

  Take mark_byte(char c) {
    const Take take = word(c, kStringMark, State::kString);
    if (state_ == State::kString) write("\"");
    return take;
  }

  Take string_byte(char c) {
    text_ += c;
    const bool whole = text_.ends_with(kStringMark);
    size_t waits = whole ? kStringMark.size() : 0;  // bytes at the end that may begin the mark
    for (size_t n = std::min(text_.size(), kStringMark.size() - 1); n > waits; --n)
      if (kStringMark.starts_with(std::string_view(text_).substr(text_.size() - n))) waits = n;
    pass(text_.size() - waits);
    if (!whole) return Take::kMore;
    sink_.arguments("\"");
    text_.clear();
    state_ = State::kAfter;
    return Take::kMore;
  }

  void pass(size_t bytes) {
    std::string out;
    append_json_text(out, std::string_view(text_).substr(0, bytes));
    sink_.arguments(out);
    text_.erase(0, bytes);
  }

  // Takes a byte of a scalar; a word that is no scalar is a string without its marks.
  Take scalar_byte(char c) {
    if (c != ',' && c != ']' && c != '}') {
      text_ += c;
      return Take::kMore;
    }
    std::string_view text = text_;
    while (!text.empty() && is_json_space(text.back())) text.remove_suffix(1);
    std::string json = scalar_to_json(text).value_or("");
    if (json.empty()) {
      json = "\"";
      append_json_text(json, text);
      json += '"';
    }
    write(json);
    state_ = State::kAfter;
    return put(c);
  }

  Take after(char c) {
    if (is_json_space(c)) return Take::kMore;
    if (c == '}' || c == ']') return close_container(c);
    if (c != ',') return Take::kBroken;
    text_.clear();
    state_ = stack_.back() == '{' ? State::kKey : State::kValue;
    return Take::kMore;
  }

  Take close_container(char c) {
    if (stack_.back() != (c == '}' ? '{' : '[')) return Take::kBroken;
    sink_.arguments({&c, 1});
    stack_.pop_back();
    first_ = false;
    state_ = State::kAfter;
    if (!stack_.empty()) return Take::kMore;
    end_call();
    state_ = State::kEnd;
    return Take::kMore;
  }

  void close_arguments() override {
    std::string out;
    if (state_ == State::kString) {
      append_json_text(out, text_);
      out += '"';
    }
    for (; !stack_.empty(); stack_.pop_back()) out += stack_.back() == '{' ? '}' : ']';
    sink_.arguments(out);
  }

  const ToolFormat& f_;
  State state_ = State::kBegin;
  WordMatcher words_;
  std::string name_, key_, stack_;
  std::string text_;    // text of the current key, string or scalar
  bool first_ = false;  // the innermost container is still empty
};

}  // namespace

std::unique_ptr<CallParser> make_gemma_parser(const ToolFormat& format, CallSink& sink) {
  return std::make_unique<GemmaParser>(format, sink);
}

}  // namespace moebius
