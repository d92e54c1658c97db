// SPDX-License-Identifier: Apache-2.0
#include "text/answer/call_parser.h"

namespace moebius {

CallParser::Take CallParser::word(char c, std::initializer_list<std::string_view> words) {
  if (word_text_.empty() && is_json_space(c)) return Take::kMore;
  word_text_ += c;
  bool prefix = false;
  word_ = 0;
  for (const std::string_view w : words) {
    if (!w.empty() && w == word_text_) {
      word_text_.clear();
      return Take::kDone;
    }
    prefix = prefix || w.starts_with(word_text_);
    ++word_;
  }
  if (!prefix) word_text_.pop_back();
  return prefix ? Take::kMore : Take::kBroken;
}

bool CallParser::name_byte(char c) {
  if (!is_name_byte(c) || name_.size() == kMostNameBytes) return false;
  name_ += c;
  return true;
}

void CallParser::write_key() {
  sink_.arguments((arguments_++ == 0 ? "{" : ",") + json_string(key_) + ":");
}

JsonKinds CallParser::kinds_of_key() const {
  const auto at = tool_->parameters.find(key_);
  return at != tool_->parameters.end() ? at->second : 0;
}

std::unique_ptr<CallParser> make_call_parser(const ToolFormat& format, CallSink& sink,
                                             bool marked) {
  if (format.layout == CallLayout::kObject) return make_object_parser(format, sink);
  if (format.layout == CallLayout::kPythonic) return make_pythonic_parser(format, sink, marked);
  return make_named_parser(format, sink);
}

}  // namespace moebius
