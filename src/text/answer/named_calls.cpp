// SPDX-License-Identifier: Apache-2.0
// Reads calls of a name, a separator and arguments as JSON: Kimi-K2, DeepSeek-V3 and V3.1, new
// Mistral. The arguments end where the JSON object ends, whatever its strings contain.
#include <array>

#include "text/answer/call_parser.h"

namespace moebius {
namespace {

constexpr size_t kMostHeadBytes = 256;
constexpr std::string_view kCallId = "[CALL_ID]", kFunctions = "functions.", kFence = "```";

std::string_view trimmed(std::string_view s) {
  while (!s.empty() && is_json_space(s.front())) s.remove_prefix(1);
  while (!s.empty() && is_json_space(s.back())) s.remove_suffix(1);
  return s;
}

class NamedParser final : public CallParser {
 public:
  NamedParser(const ToolFormat& format, CallSink& sink)
      : CallParser(sink),
        f_(format),
        separator_(trimmed(format.separator)),
        state_(format.call_begin.empty() ? State::kHead : State::kBetween) {}

  Take put(char c) override {
    switch (state_) {
      case State::kBetween:
        return between(c);
      case State::kHead:
        return head_byte(c);
      case State::kArguments:
        return argument_byte(c);
      case State::kAfter:
        return after(c);
    }
    return Take::kBroken;
  }

  bool finish() override { return calls_ > 0 && !words_.inside() && state_ != State::kHead; }

 private:
  enum class State : uint8_t { kBetween, kHead, kArguments, kAfter };

  Take between(char c) {
    const std::array<std::string_view, 2> words = {f_.call_begin, f_.section_end};
    const auto take = words_.put(c, words);
    if (take == WordMatcher::Take::kBroken) return Take::kBroken;
    if (take == WordMatcher::Take::kMore) return Take::kMore;
    if (words_.word() == 1) return calls_ > 0 ? Take::kDone : Take::kBroken;
    state_ = State::kHead;
    head_.clear();
    return Take::kMore;
  }

  Take head_byte(char c) {
    if (head_.size() == kMostHeadBytes) return Take::kBroken;
    head_ += c;
    if (!head_.ends_with(separator_)) return Take::kMore;
    head_.resize(head_.size() - separator_.size());
    if (!begin_of(trimmed(head_))) return Take::kBroken;
    state_ = State::kArguments;
    json_.emplace(JsonStream::Root::kObject);
    return Take::kMore;
  }

  bool begin_of(std::string_view head) {
    if (f_.ids == CallIds::kFunctions) {
      const std::string_view id = head;
      if (head.starts_with(kFunctions)) head.remove_prefix(kFunctions.size());
      if (const size_t colon = head.rfind(':'); colon != head.npos) head = head.substr(0, colon);
      return begin_call(head, id);
    }
    std::string_view id;
    if (const size_t at = head.find(kCallId); at != head.npos) {
      id = trimmed(head.substr(at + kCallId.size()));
      head = trimmed(head.substr(0, at));
    }
    return begin_call(head, id);
  }

  Take argument_byte(char c) {
    std::string out;
    const auto take = json_->put(c, out);
    sink_.arguments(out);
    if (take == JsonStream::Take::kMore) return Take::kMore;
    if (take == JsonStream::Take::kBroken) return Take::kBroken;
    ++calls_;
    end_call();
    state_ = State::kAfter;
    return f_.call_end.empty() ? Take::kDone : Take::kMore;
  }

  Take after(char c) {
    const std::array<std::string_view, 2> words = {f_.call_end, kFence};
    const auto take = words_.put(c, words);
    if (take == WordMatcher::Take::kBroken) return Take::kBroken;
    if (take == WordMatcher::Take::kFound && words_.word() == 0) state_ = State::kBetween;
    return Take::kMore;
  }

  void close_arguments() override {
    std::string out;
    json_->close(out);
    sink_.arguments(out);
  }

  const ToolFormat& f_;
  const std::string_view separator_;
  State state_;
  WordMatcher words_;
  std::string head_;
  std::optional<JsonStream> json_;
  size_t calls_ = 0;
};

}  // namespace

std::unique_ptr<CallParser> make_named_parser(const ToolFormat& format, CallSink& sink) {
  return std::make_unique<NamedParser>(format, sink);
}

}  // namespace moebius
