// SPDX-License-Identifier: Apache-2.0
// Reads calls as Python writes them, [f(a='x', b=[1, None]), g()]: Llama-4, LFM2. Strings are
// passed on as they grow, other values when whole. Templates of these families print past calls
// carelessly and models take after them: a number between quotes is read by the schema, a text
// without quotes is a string, and a comma behind a string may be missing.
#include "text/answer/call_parser.h"

namespace moebius {
namespace {

constexpr size_t kMostArgumentName = 256, kMostBrackets = 32;

class PythonicParser final : public CallParser {
 public:
  PythonicParser(const ToolFormat& format, CallSink& sink, bool marked)
      : CallParser(format, sink), marked_(marked) {}

  Take put(char c) override {
    switch (state_) {
      case State::kString:
        return string_byte(c);
      case State::kValue:
        return value_byte(c);
      case State::kEnd:
        return end_byte(c);
      default:
        break;
    }
    if (is_json_space(c)) return Take::kMore;
    switch (state_) {
      case State::kBegin:
        if (c != '[') return Take::kBroken;
        state_ = State::kName;
        return Take::kMore;
      case State::kName:
        if (c == '(') return call_begins();
        return name_byte(c) ? Take::kMore : Take::kBroken;
      case State::kFirstKey:
        if (c == ')') return call_done();
        [[fallthrough]];
      case State::kKey:
        return key_byte(c);
      case State::kValueBegin:
        return value_begin(c);
      case State::kAfterValue:
        if (c == ')') return call_done();
        key_.clear();
        state_ = State::kFirstKey;
        if (c == ',') return Take::kMore;
        return is_name_byte(c) ? key_byte(c) : Take::kBroken;
      case State::kAfterCall:
        if (c == ']') {
          state_ = State::kEnd;
          return marked_ ? Take::kMore : Take::kDone;
        }
        if (c != ',') return Take::kBroken;
        name_.clear();
        state_ = State::kName;
        return Take::kMore;
      default:
        return Take::kBroken;
    }
  }

  bool finish() const override { return state_ == State::kEnd && !inside_word(); }

 private:
  enum class State : uint8_t {
    kBegin,
    kName,
    kFirstKey,
    kKey,
    kValueBegin,
    kValue,
    kString,
    kAfterValue,
    kAfterCall,
    kEnd,
  };

  Take call_begins() {
    if (!begin_call(name_)) return Take::kBroken;
    key_.clear();
    state_ = State::kFirstKey;
    return Take::kMore;
  }

  Take key_byte(char c) {
    if (c == '=' && !key_.empty()) {
      state_ = State::kValueBegin;
      return Take::kMore;
    }
    if (!is_name_byte(c) || key_.size() == kMostArgumentName) return Take::kBroken;
    key_ += c;
    state_ = State::kKey;
    return Take::kMore;
  }

  Take value_begin(char c) {
    if (c == '\'' || c == '"') {
      string_ = PythonString(c);
      write_key();
      const JsonKinds kinds = kinds_of_key();
      quoted_.clear();
      kept_ = kinds != 0 && (kinds & kStringKind) == 0;
      string_text("\"");
      state_ = State::kString;
      return Take::kMore;
    }
    value_.clear();
    brackets_ = 0;
    inner_quote_ = 0;
    state_ = State::kValue;
    return value_byte(c);
  }

  Take string_byte(char c) {
    std::string out;
    const bool more = string_.put(c, out);
    string_text(more ? out : out + '"');
    if (more) return Take::kMore;
    if (std::exchange(kept_, false)) sink_.arguments(unquoted_value());
    state_ = State::kAfterValue;
    return Take::kMore;
  }

  void string_text(std::string_view json) {
    if (kept_)
      quoted_ += json;
    else
      sink_.arguments(json);
  }

  // Returns the value that a string contains, for a parameter whose schema allows no string.
  std::string unquoted_value() const {
    const std::string text = parse_json(quoted_, "a string").as_string();
    if (const auto json = json_value(text)) return *json;
    return python_to_json(text).value_or(quoted_);
  }

  // Takes a byte of a value other than a string, up to the comma or bracket that ends it.
  Take value_byte(char c) {
    if (inner_quote_ != 0) {
      value_ += c;
      if (escaped_)
        escaped_ = false;
      else if (c == '\\')
        escaped_ = true;
      else if (c == inner_quote_)
        inner_quote_ = 0;
      return Take::kMore;
    }
    if (brackets_ == 0 && (c == ',' || c == ')')) {
      const JsonKinds kinds = kinds_of_key();
      std::string json = python_to_json(value_).value_or("");
      if (json.empty() || kinds == kStringKind) {
        if (value_.empty() || (kinds != 0 && (kinds & kStringKind) == 0)) return Take::kBroken;
        json = json_string(value_);
      }
      write_key();
      sink_.arguments(json);
      state_ = State::kAfterValue;
      return put(c);
    }
    if (c == '\'' || c == '"') inner_quote_ = c;
    if (c == '[' || c == '{' || c == '(') ++brackets_;
    if (c == ']' || c == '}' || c == ')') {
      if (brackets_ == 0) return Take::kBroken;
      --brackets_;
    }
    if (brackets_ > kMostBrackets) return Take::kBroken;
    value_ += c;
    return Take::kMore;
  }

  Take call_done() {
    write_end();
    end_call();
    state_ = State::kAfterCall;
    return Take::kMore;
  }

  Take end_byte(char c) {
    const bool inside = inside_word();
    const Take take = word(c, {f_.section_end});
    return take == Take::kBroken && !inside ? Take::kDoneBefore : take;
  }

  void close_arguments() override {
    if (state_ == State::kString) sink_.arguments((kept_ ? quoted_ : "") + '"');
    write_end();
  }

  const bool marked_;
  State state_ = State::kBegin;
  std::string value_;
  std::string quoted_;  // text of a string that may stand for another value
  PythonString string_;
  char inner_quote_ = 0;
  bool escaped_ = false, kept_ = false;
  size_t brackets_ = 0;
};

}  // namespace

std::unique_ptr<CallParser> make_pythonic_parser(const ToolFormat& format, CallSink& sink,
                                                 bool marked) {
  return std::make_unique<PythonicParser>(format, sink, marked);
}

}  // namespace moebius
