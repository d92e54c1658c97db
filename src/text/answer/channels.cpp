// SPDX-License-Identifier: Apache-2.0
// Reads GPT-OSS's answers: a row of messages, each with a head that names its channel and, for a
// call, the function. The channel "analysis" is reasoning; every other message without a recipient
// is content.
#include <array>

#include "text/answer/reader.h"

namespace moebius {
namespace {

constexpr size_t kMostHead = 256;
constexpr std::string_view kStartMark = "<|start|>", kChannel = "<|channel|>",
                           kMessage = "<|message|>", kFunctionPrefix = "functions.";
constexpr std::array<std::string_view, 5> kEnds = {"<|end|>", "<|return|>", "<|call|>", kStartMark,
                                                   kChannel};

class ChannelReader final : public AnswerReader {
 public:
  ChannelReader(const AnswerRules& rules, AnswerWriter& writer) : writer_(writer) {
    if (rules.start == AnswerStart::kReasoning) state_ = State::kReasoning;
  }

  std::string put(char c) override {
    switch (state_) {
      case State::kHead:
        return head_byte(c);
      case State::kCall:
        return call_byte(c);
      default:
        body_byte(c);
        return {};
    }
  }

  void finish(bool cut) override {
    if (state_ == State::kCall) {
      if (in_call_ && !cut) close_call();
      return;
    }
    if (state_ == State::kHead) {
      if (!cut && !head_.starts_with('<')) writer_.content(head_);
      return;
    }
    show(pending_);
    pending_.clear();
  }

  bool reasoning() const override { return state_ == State::kReasoning; }

 private:
  enum class State : uint8_t { kHead, kReasoning, kContent, kCall };

  void show(std::string_view text) {
    if (state_ == State::kReasoning)
      writer_.reasoning(text);
    else
      writer_.content(text);
  }

  std::string head_byte(char c) {
    head_ += c;
    static constexpr std::array<std::string_view, 5> kBegins = {kStartMark, kChannel, kMessage,
                                                                " to=", "to="};
    bool known = false;
    for (const std::string_view b : kBegins)
      known = known || head_.starts_with(b) || b.starts_with(head_);
    if (!known || head_.size() == kMostHead) {
      // The text is no head: it becomes content. Its marker is not read again, or it would begin
      // the same head for ever.
      state_ = State::kContent;
      std::string again = std::exchange(head_, {});
      for (const std::string_view mark : {kStartMark, kChannel}) {
        if (!again.starts_with(mark)) continue;
        writer_.content(mark);
        again.erase(0, mark.size());
        break;
      }
      return again;
    }
    if (head_.ends_with(kMessage)) message(std::exchange(head_, {}));
    return {};
  }

  // Returns the word after `mark`, up to a space or a marker.
  static std::string_view word_after(std::string_view head, std::string_view mark) {
    const size_t at = head.find(mark);
    if (at == head.npos) return {};
    const std::string_view rest = head.substr(at + mark.size());
    return rest.substr(0, rest.find_first_of(" <"));
  }

  void message(const std::string& head) {
    const std::string_view to = word_after(head, "to="), channel = word_after(head, kChannel);
    if (to.empty()) {
      state_ = channel == "analysis" ? State::kReasoning : State::kContent;
      return;
    }
    const std::string_view name =
        to.starts_with(kFunctionPrefix) ? to.substr(kFunctionPrefix.size()) : to;
    if (writer_.tool(name) == nullptr) {
      state_ = State::kContent;
      writer_.broken();
      writer_.content(head);
      return;
    }
    state_ = State::kCall;
    in_call_ = true;
    json_.emplace(JsonStream::Root::kObject);
    writer_.begin(name, "");
  }

  void body_byte(char c) {
    pending_ += c;
    const MarkerAt at = marker_at_end(pending_, kEnds);
    const size_t shown = pending_.size() - at.bytes;
    show(std::string_view(pending_).substr(0, shown));
    pending_.erase(0, shown);
    if (at.marker != kNoMarker) end_message(at.marker);
  }

  void end_message(size_t marker) {
    pending_.clear();
    if (state_ == State::kReasoning) writer_.reasoning_end();
    head_ = marker >= 3 ? kEnds[marker] : "";
    state_ = State::kHead;
  }

  std::string call_byte(char c) {
    if (in_call_) {
      std::string out;
      const auto take = json_->put(c, out);
      writer_.arguments(out);
      if (take == JsonStream::Take::kMore) return {};
      in_call_ = false;
      if (take == JsonStream::Take::kWhole) {
        writer_.end();
        return {};
      }
      close_call();
      state_ = State::kContent;
      return std::string(1, c);
    }
    // After the arguments only the end of the message may follow.
    if (pending_.empty() && is_json_space(c)) return {};
    pending_ += c;
    const MarkerAt at = marker_at_end(pending_, kEnds);
    if (at.marker != kNoMarker) {
      end_message(at.marker);
    } else if (at.bytes < pending_.size()) {
      state_ = State::kContent;
      return std::exchange(pending_, {});
    }
    return {};
  }

  void close_call() {
    std::string out;
    json_->close(out);
    writer_.arguments(out);
    writer_.end_broken();
    in_call_ = false;
  }

  AnswerWriter& writer_;
  State state_ = State::kHead;
  bool in_call_ = false;  // the call's arguments are not complete
  std::string head_, pending_;
  std::optional<JsonStream> json_;
};

}  // namespace

std::unique_ptr<AnswerReader> make_channel_reader(const AnswerRules& rules, AnswerWriter& writer) {
  return std::make_unique<ChannelReader>(rules, writer);
}

}  // namespace moebius
