// SPDX-License-Identifier: Apache-2.0
// Reads calls as one JSON object, {"name": ..., "arguments": {...}}: Hermes and Qwen, Llama-3.1
// (also several, with semicolons), MiniMax-M1 (one after the other), old Mistral and Nemotron (a
// list).
#include <optional>

#include "text/answer/call_parser.h"

namespace moebius {
namespace {

// Returns the text of a JSON string; nothing for other values.
std::optional<std::string> unquoted(const std::string& json) {
  if (!json.starts_with('"')) return std::nullopt;
  try {
    return parse_json(json, "a name").as_string();
  } catch (const std::exception&) {
    return std::nullopt;
  }
}

class ObjectParser final : public CallParser {
 public:
  ObjectParser(const ToolFormat& format, CallSink& sink)
      : CallParser(format, sink),
        step_(format.is_list() ? &ObjectParser::list_begin : &ObjectParser::begin) {}

  Take put(char c) override { return (this->*step_)(c); }

  bool finish() const override {
    return step_ == &ObjectParser::end_byte && calls_ > 0 && !inside_word();
  }

 private:
  // The parser's state: the function that takes the next byte.
  using Step = Take (ObjectParser::*)(char c);
  // Says what json_byte() reads. Arguments are passed on, or kept until the name is known.
  enum class Reads : uint8_t { kKey, kValue, kArguments };

  Take expect(char c, char wanted, Step then) {
    if (is_json_space(c)) return Take::kMore;
    if (c != wanted) return Take::kBroken;
    step_ = then;
    return Take::kMore;
  }
  Take list_begin(char c) { return expect(c, '[', &ObjectParser::begin); }
  Take begin(char c) {
    named_ = given_ = false;
    waiting_.clear();
    return expect(c, '{', &ObjectParser::key);
  }
  Take key(char c) {
    if (is_json_space(c)) return Take::kMore;
    return c == '"' ? start(Reads::kKey, c) : Take::kBroken;
  }
  Take colon(char c) { return expect(c, ':', &ObjectParser::value_begin); }

  Take value_begin(char c) {
    if (is_json_space(c)) return Take::kMore;
    const bool arguments = key_ == "arguments" || key_ == "parameters";
    if (arguments && given_) return Take::kBroken;
    if (!arguments || c != '{') return start(Reads::kValue, c);
    given_ = true;
    return start(Reads::kArguments, c);
  }

  Take start(Reads reads, char c) {
    json_.emplace(reads == Reads::kArguments ? JsonStream::Root::kObject : JsonStream::Root::kAny);
    text_.clear();
    reads_ = reads;
    step_ = &ObjectParser::json_byte;
    return json_byte(c);
  }

  Take json_byte(char c) {
    std::string out;
    const auto take = json_->put(c, out);
    if (reads_ == Reads::kArguments && in_call())
      sink_.arguments(out);
    else
      (reads_ == Reads::kArguments ? waiting_ : text_) += out;
    if (take == JsonStream::Take::kMore) return Take::kMore;
    if (take == JsonStream::Take::kBroken || !value_read()) return Take::kBroken;
    return take == JsonStream::Take::kWhole ? Take::kMore : put(c);
  }

  // Handles a complete key or value; returns false if it cannot be what its place requires.
  bool value_read() {
    if (reads_ == Reads::kKey) {
      const auto key = unquoted(text_);
      if (!key) return false;
      key_ = *key;
      step_ = &ObjectParser::colon;
      return true;
    }
    step_ = &ObjectParser::after_value;
    if (reads_ == Reads::kArguments) return true;
    if (key_ == "arguments" || key_ == "parameters") return quoted_arguments();
    return key_ != "name" || name_read();
  }

  bool name_read() {
    const auto name = unquoted(text_);
    if (!name || named_ || !begin_call(*name)) return false;
    named_ = true;
    sink_.arguments(std::exchange(waiting_, {}));
    return true;
  }

  // Handles arguments that are an object written as a string; returns false for another string.
  bool quoted_arguments() {
    if (text_ == "null") return true;
    const auto inner = unquoted(text_);
    const auto json = inner ? json_value(*inner) : std::nullopt;
    if (!json || !json->starts_with('{')) return false;
    given_ = true;
    if (in_call())
      sink_.arguments(*json);
    else
      waiting_ = *json;
    return true;
  }

  Take after_value(char c) {
    if (c != '}') return expect(c, ',', &ObjectParser::key);
    if (!in_call()) return Take::kBroken;
    if (!given_) sink_.arguments("{}");
    end_call();
    step_ = &ObjectParser::end_byte;
    return Take::kMore;
  }

  // Consumes a byte after an object: the section ends, or another object follows.
  Take end_byte(char c) {
    if (f_.is_list() && !list_ended_) {
      if (c != ']') return expect(c, ',', &ObjectParser::begin);
      list_ended_ = true;
      return f_.section_end.empty() ? Take::kDone : Take::kMore;
    }
    if (f_.section_end.empty()) {
      if (is_json_space(c)) return Take::kMore;
      if (c != ';') return Take::kDoneBefore;
      step_ = &ObjectParser::begin;
      return Take::kMore;
    }
    if (c == '{' && !f_.is_list() && !inside_word()) return begin(c);
    return word(c, {f_.section_end});
  }

  void close_arguments() override {
    std::string out;
    if (step_ == &ObjectParser::json_byte && reads_ == Reads::kArguments)
      json_->close(out);
    else if (!given_)
      out = "{}";
    sink_.arguments(out);
  }

  Step step_;
  Reads reads_ = Reads::kKey;
  std::optional<JsonStream> json_;
  std::string text_;
  std::string waiting_;  // arguments that came before the name
  bool named_ = false;   // the name was seen
  bool given_ = false;   // arguments were seen
  bool list_ended_ = false;
};

}  // namespace

std::unique_ptr<CallParser> make_object_parser(const ToolFormat& format, CallSink& sink) {
  return std::make_unique<ObjectParser>(format, sink);
}

}  // namespace moebius
