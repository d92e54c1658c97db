// SPDX-License-Identifier: Apache-2.0
// Reads calls that begin with their name. Arguments are JSON (Kimi-K2, DeepSeek-V3 and V3.1, new
// Mistral), Gemma's form of it, between tags (Qwen3-Coder, GLM, Hy3, Kimi-K3, DeepSeek-V3.2 and V4,
// MiniMax-M2), or elements (MiniMax-M3). Strings are passed on as they grow; what may begin the
// closing tag waits. Other values between tags are passed on when whole. JSON ends where its object
// ends, whatever its strings contain.
#include "text/answer/call_parser.h"

namespace moebius {
namespace {

constexpr size_t kMostHeadBytes = 256;
constexpr std::string_view kCallId = "[CALL_ID]", kFunctions = "functions.", kFence = "```";
constexpr JsonKinds kAnyButString = kNumberKind | kBoolKind | kNullKind | kObjectKind | kArrayKind;

// Replaces the escapes in an attribute's value.
std::string unescaped(std::string text) {
  for (const auto& [word, c] : {std::pair{"&quot;", '"'}, std::pair{"&amp;", '&'}})
    for (size_t at = 0; (at = text.find(word, at)) != text.npos; ++at)
      text.replace(at, std::string_view(word).size(), 1, c);
  return text;
}

class NamedParser final : public CallParser {
 public:
  NamedParser(const ToolFormat& format, CallSink& sink)
      : CallParser(format, sink),
        head_end_(without_spaces(format.name_end)),
        value_end_(format.value_end),
        closing_(std::string(format.line_feed) + value_end_),
        step_(format.call_begin.empty() ? before_name() : &NamedParser::between) {}

  Take put(char c) override { return (this->*step_)(c); }

  bool finish() const override {
    return calls_ > 0 && !inside_word() &&
           (step_ == &NamedParser::between || step_ == &NamedParser::json_end);
  }

 private:
  // The parser's state: the function that takes the next byte.
  using Step = Take (NamedParser::*)(char c);

  bool elements() const { return f_.layout == CallLayout::kElements; }
  Step before_name() const {
    if (f_.layout == CallLayout::kNamed) return &NamedParser::head_byte;
    return f_.layout == CallLayout::kGemma ? &NamedParser::name_begin : &NamedParser::name;
  }

  Take expect(char c, std::string_view text, Step then) {
    const Take take = word(c, {text});
    if (take != Take::kDone) return take;
    step_ = then;
    return Take::kMore;
  }
  Take name_begin(char c) { return expect(c, f_.name_begin, &NamedParser::name); }
  Take value_begin(char c) { return expect(c, f_.value_begin, &NamedParser::value_byte); }

  // Consumes a byte between calls: a call begins, or the section ends.
  Take between(char c) {
    const Take take = word(c, {f_.call_begin, f_.section_end});
    if (take != Take::kDone) return take;
    if (word_ == 1) return calls_ > 0 ? Take::kDone : Take::kBroken;
    step_ = before_name();
    name_.clear();
    head_.clear();
    return Take::kMore;
  }

  void begin(std::string_view name, std::string_view id = {}) {
    const bool json = f_.layout == CallLayout::kNamed || f_.layout == CallLayout::kGemma;
    begin_call(name, id);
    step_ = json ? &NamedParser::json_byte : &NamedParser::parameters;
    if (json) json_.emplace(JsonStream::Root::kObject, f_.mark);
  }

  bool head_grows(char c) {
    if (head_.size() == kMostHeadBytes) return false;
    head_ += c;
    return true;
  }

  Take head_byte(char c) {
    if (!head_grows(c)) return Take::kBroken;
    if (!head_.ends_with(head_end_)) return Take::kMore;
    head_.resize(head_.size() - head_end_.size());
    std::string_view name = without_spaces(head_), id;
    if (f_.ids == CallIds::kFunctions) {
      id = name;
      if (name.starts_with(kFunctions)) name.remove_prefix(kFunctions.size());
      name = name.substr(0, name.rfind(':'));
    } else if (const size_t at = name.find(kCallId); at != name.npos) {
      id = without_spaces(name.substr(at + kCallId.size()));
      name = without_spaces(name.substr(0, at));
    }
    if (sink_.tool(name) == nullptr) return Take::kBroken;
    begin(name, id);
    return Take::kMore;
  }

  Take name(char c) {
    const bool gemma = f_.layout == CallLayout::kGemma, bare_end = f_.name_end.empty();
    if (name_.empty() && bare_end && !gemma && is_json_space(c)) return Take::kMore;
    if (is_name_byte(c)) return name_byte(c) ? Take::kMore : Take::kBroken;
    if (sink_.tool(name_) == nullptr) return Take::kBroken;
    if (bare_end && (gemma ? c != '{' : !is_json_space(c) && c != '<')) return Take::kBroken;
    step_ = &NamedParser::name_end;
    head_.clear();
    if (bare_end) begin(name_);
    return put(c);
  }

  Take name_end(char c) {
    const Take take = expect(c, f_.name_end, &NamedParser::tag_end);
    if (step_ == &NamedParser::tag_end && f_.tag_end.empty()) begin(name_);
    return take;
  }

  // Takes other attributes of the tag that has the name.
  Take tag_end(char c) {
    if (!head_grows(c)) return Take::kBroken;
    if (head_.ends_with(f_.tag_end)) begin(name_);
    return Take::kMore;
  }

  Take json_byte(char c) {
    std::string out;
    const auto take = json_->put(c, out);
    sink_.arguments(out);
    if (take == JsonStream::Take::kMore) return Take::kMore;
    if (take == JsonStream::Take::kBroken) return Take::kBroken;
    end_call();
    if (f_.call_end.empty()) return section_goes_on();
    step_ = &NamedParser::json_end;
    return Take::kMore;
  }

  Take json_end(char c) {
    const Take take = word(c, {f_.call_end, kFence});
    if (take == Take::kDone && word_ == 0) step_ = &NamedParser::between;
    return take == Take::kDone ? Take::kMore : take;
  }

  Take section_goes_on() {
    step_ = &NamedParser::between;
    return f_.section_end.empty() ? Take::kDone : Take::kMore;
  }

  Take parameters(char c) {
    const Take take = word(c, {f_.key_begin, f_.call_end});
    if (take != Take::kDone) return take;
    if (word_ == 1) return tags_end();
    step_ = &NamedParser::key_byte;
    key_.clear();
    return Take::kMore;
  }

  // Takes the rest of the call's closing tag.
  Take element_end(char c) {
    const Take take = word(c, {f_.call_end.substr(f_.key_begin.size() + 1)});
    return take == Take::kDone ? tags_end() : take;
  }

  Take tags_end() {
    write_end();
    end_call();
    return section_goes_on();
  }

  Take key_byte(char c) {
    if (elements() && key_.empty() && c == '/') {
      step_ = &NamedParser::element_end;
      return Take::kMore;
    }
    const bool bad = elements() && (is_json_space(c) || (c == '>' && key_.empty()));
    if (bad || key_.size() == kMostHeadBytes) return Take::kBroken;
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

  void begin_value(JsonKinds kinds) {
    kinds_ = kinds;
    value_.clear();
    first_ = true;
    if (elements()) closing_ = value_end_ = std::string(f_.mark) + "</" + key_ + ">";
    step_ = f_.value_begin.empty() ? &NamedParser::value_byte : &NamedParser::value_begin;
  }

  // Takes a byte of a value; value_ holds what was not passed on yet.
  Take value_byte(char c) {
    value_ += c;
    if (std::exchange(first_, false) && value_ == f_.line_feed) {
      value_.clear();
      return Take::kMore;
    }
    const bool string = kinds_ == kStringKind;
    if (!value_.ends_with(value_end_)) {
      const std::string_view ends[] = {closing_, value_end_};
      if (string) pass_string(value_.size() - marker_at_end(value_, ends).bytes);
      return Take::kMore;
    }
    if (elements() && !string && end_of_element(value_, f_.mark, key_) == value_.npos)
      return Take::kMore;
    value_.resize(value_.size() -
                  (value_.ends_with(closing_) ? closing_.size() : value_end_.size()));
    step_ = &NamedParser::parameters;
    if (string) {
      pass_string(value_.size());
      sink_.arguments("\"");
      string_open_ = false;
      return Take::kMore;
    }
    const std::string json = elements()
                                 ? element_value(value_, f_.mark, schema_below(tool_->schema, key_))
                                 : typed_value(value_, kinds_);
    write_key();
    sink_.arguments(json);
    return Take::kMore;
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

  void close_arguments() override {
    if (step_ == &NamedParser::json_byte) {
      std::string out;
      json_->close(out);
      return sink_.arguments(out);
    }
    if (string_open_) sink_.arguments(json_string(value_).substr(1));
    write_end();
  }

  const std::string_view head_end_;
  std::string value_end_, closing_;  // ends of a value: with line feed, without
  Step step_;
  std::string head_, value_;
  std::optional<JsonStream> json_;
  JsonKinds kinds_ = 0;
  bool first_ = true, string_open_ = false;
};

}  // namespace

std::unique_ptr<CallParser> make_named_parser(const ToolFormat& format, CallSink& sink) {
  return std::make_unique<NamedParser>(format, sink);
}

}  // namespace moebius
