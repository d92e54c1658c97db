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

  Take put(char c) override { return (this->*step_)(c); }

  bool finish() const override { return step_ == &PythonicParser::end_byte && !inside_word(); }

 private:
  // The parser's state: the function that takes the next byte.
  using Step = Take (PythonicParser::*)(char c);

  Take list_begin(char c) {
    if (is_json_space(c)) return Take::kMore;
    if (c != '[') return Take::kBroken;
    step_ = &PythonicParser::name;
    return Take::kMore;
  }

  Take name(char c) {
    if (is_json_space(c)) return Take::kMore;
    if (c == '(') return call_begins();
    return name_byte(c) ? Take::kMore : Take::kBroken;
  }

  Take first_key(char c) { return c == ')' ? call_done() : key_byte(c); }

  Take after_value(char c) {
    if (is_json_space(c)) return Take::kMore;
    if (c == ')') return call_done();
    key_.clear();
    step_ = &PythonicParser::first_key;
    if (c == ',') return Take::kMore;
    return is_name_byte(c) ? key_byte(c) : Take::kBroken;
  }

  Take after_call(char c) {
    if (is_json_space(c)) return Take::kMore;
    if (c == ']') {
      step_ = &PythonicParser::end_byte;
      return marked_ ? Take::kMore : Take::kDone;
    }
    if (c != ',') return Take::kBroken;
    name_.clear();
    step_ = &PythonicParser::name;
    return Take::kMore;
  }

  Take call_begins() {
    if (!begin_call(name_)) return Take::kBroken;
    key_.clear();
    step_ = &PythonicParser::first_key;
    return Take::kMore;
  }

  Take key_byte(char c) {
    if (is_json_space(c)) return Take::kMore;
    if (c == '=' && !key_.empty()) {
      step_ = &PythonicParser::value_begin;
      return Take::kMore;
    }
    if (!is_name_byte(c) || key_.size() == kMostArgumentName) return Take::kBroken;
    key_ += c;
    step_ = &PythonicParser::key_byte;
    return Take::kMore;
  }

  Take value_begin(char c) {
    if (is_json_space(c)) return Take::kMore;
    if (c == '\'' || c == '"') {
      string_ = PythonString(c);
      write_key();
      const JsonKinds kinds = kinds_of_key();
      quoted_.clear();
      kept_ = kinds != 0 && (kinds & kStringKind) == 0;
      string_text("\"");
      step_ = &PythonicParser::string_byte;
      return Take::kMore;
    }
    value_.clear();
    brackets_ = 0;
    inner_quote_ = 0;
    step_ = &PythonicParser::value_byte;
    return value_byte(c);
  }

  Take string_byte(char c) {
    std::string out;
    const bool more = string_.put(c, out);
    string_text(more ? out : out + '"');
    if (more) return Take::kMore;
    if (std::exchange(kept_, false)) sink_.arguments(unquoted_value());
    step_ = &PythonicParser::after_value;
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
      step_ = &PythonicParser::after_value;
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
    step_ = &PythonicParser::after_call;
    return Take::kMore;
  }

  Take end_byte(char c) {
    const bool inside = inside_word();
    const Take take = word(c, {f_.section_end});
    return take == Take::kBroken && !inside ? Take::kDoneBefore : take;
  }

  void close_arguments() override {
    if (step_ == &PythonicParser::string_byte) sink_.arguments((kept_ ? quoted_ : "") + '"');
    write_end();
  }

  const bool marked_;
  Step step_ = &PythonicParser::list_begin;
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
