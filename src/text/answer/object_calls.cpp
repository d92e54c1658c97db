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
      : CallParser(format, sink), state_(format.is_list() ? State::kListBegin : State::kBegin) {}

  Take put(char c) override {
    switch (state_) {
      case State::kKey:
      case State::kValue:
      case State::kArguments:
        return json_byte(c);
      case State::kEnd:
        return end_byte(c);
      default:
        break;
    }
    if (is_json_space(c)) return Take::kMore;
    switch (state_) {
      case State::kListBegin:
        if (c != '[') return Take::kBroken;
        state_ = State::kBegin;
        return Take::kMore;
      case State::kBegin:
        if (c != '{') return Take::kBroken;
        named_ = false;
        waiting_.clear();
        given_ = false;
        state_ = State::kFirstKey;
        return Take::kMore;
      case State::kFirstKey:
        if (c == '}') return Take::kBroken;  // a call without a name
        return start(State::kKey, c);
      case State::kNextKey:
        return start(State::kKey, c);
      case State::kColon:
        if (c != ':') return Take::kBroken;
        state_ = State::kValueBegin;
        return Take::kMore;
      case State::kValueBegin:
        return value_begin(c);
      case State::kAfterValue:
        return after_value(c);
      default:
        return Take::kBroken;
    }
  }

  bool finish() const override { return state_ == State::kEnd && calls_ > 0 && !inside_word(); }

 private:
  enum class State : uint8_t {
    kListBegin,
    kBegin,
    kFirstKey,
    kNextKey,
    kKey,
    kColon,
    kValueBegin,
    kValue,      // a value is read and kept
    kArguments,  // arguments are passed on, or kept until the name is known
    kAfterValue,
    kEnd,  // at the end of the object
  };

  Take start(State state, char c) {
    if (state == State::kKey && c != '"') return Take::kBroken;
    const bool object = state == State::kArguments && c == '{';
    json_.emplace(object ? JsonStream::Root::kObject : JsonStream::Root::kAny);
    text_.clear();
    state_ = state;
    return json_byte(c);
  }

  Take value_begin(char c) {
    const bool arguments = key_ == "arguments" || key_ == "parameters";
    if (arguments && given_) return Take::kBroken;
    if (!arguments || c != '{') return start(State::kValue, c);
    given_ = true;
    return start(State::kArguments, c);
  }

  Take json_byte(char c) {
    std::string out;
    const auto take = json_->put(c, out);
    if (state_ == State::kArguments && in_call())
      sink_.arguments(out);
    else
      (state_ == State::kArguments ? waiting_ : text_) += out;
    if (take == JsonStream::Take::kMore) return Take::kMore;
    if (take == JsonStream::Take::kBroken || !value_read()) return Take::kBroken;
    return take == JsonStream::Take::kWhole ? Take::kMore : put(c);
  }

  // Handles a complete key or value; returns false if it cannot be what its place requires.
  bool value_read() {
    if (state_ == State::kKey) {
      const auto key = unquoted(text_);
      if (!key) return false;
      key_ = *key;
      state_ = State::kColon;
      return true;
    }
    const bool value = state_ == State::kValue;
    state_ = State::kAfterValue;
    if (!value) return true;
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
    if (c == ',') {
      state_ = State::kNextKey;
      return Take::kMore;
    }
    if (c != '}' || !in_call()) return Take::kBroken;
    if (!given_) sink_.arguments("{}");
    end_call();
    state_ = State::kEnd;
    return Take::kMore;
  }

  // Consumes a byte after an object: the section ends, or another object follows.
  Take end_byte(char c) {
    if (f_.is_list() && !list_ended_) {
      if (is_json_space(c)) return Take::kMore;
      if (c == ']') {
        list_ended_ = true;
        return f_.section_end.empty() ? Take::kDone : Take::kMore;
      }
      if (c != ',') return Take::kBroken;
      state_ = State::kBegin;
      return Take::kMore;
    }
    if (f_.section_end.empty()) {
      if (is_json_space(c)) return Take::kMore;
      if (c != ';') return Take::kDoneBefore;
      state_ = State::kBegin;
      return Take::kMore;
    }
    if (c == '{' && !f_.is_list() && !inside_word()) {
      state_ = State::kBegin;
      return put(c);
    }
    return word(c, {f_.section_end});
  }

  void close_arguments() override {
    std::string out;
    if (state_ == State::kArguments)
      json_->close(out);
    else if (!given_)
      out = "{}";
    sink_.arguments(out);
  }

  State state_;
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
