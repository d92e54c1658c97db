// SPDX-License-Identifier: Apache-2.0
// Defines what the two readers of answers share: the writer of events, and the interface.
#pragma once
#include "text/answer/call_parser.h"
#include "text/answer/events.h"

namespace moebius {

// Appends events to a list and numbers the calls.
class AnswerWriter final : public CallSink {
 public:
  explicit AnswerWriter(const AnswerRules& rules) : rules_(rules) {}  // the rules must outlive this
  void into(AnswerEvents& events) { out_ = &events; }

  void reasoning(std::string_view text) {
    add(rules_.reasoning != nullptr ? Kind::kReasoning : Kind::kContent, text);
  }
  void reasoning_end() {
    if (rules_.reasoning != nullptr) add(Kind::kReasoningEnd, "");
  }
  void content(std::string_view text) { add(Kind::kContent, text); }

  const Tool* tool(std::string_view name) const override {
    return rules_.tools ? rules_.tools->find(name) : nullptr;
  }
  void begin(std::string_view name, std::string_view id) override {
    out_->push_back({Kind::kCallBegin, std::string(name), calls_, std::string(id)});
  }
  void arguments(std::string_view bytes) override {
    add_event(*out_, {Kind::kCallArguments, std::string(bytes), calls_, ""});
  }
  void end() override {
    out_->push_back({Kind::kCallEnd, "", calls_++, ""});
    ++whole_;
  }
  // Ends a call that was cut off and completed here.
  void end_broken() {
    broken();
    out_->push_back({Kind::kCallEnd, "", calls_++, "", false});
  }
  void broken() { out_->push_back({Kind::kCallBroken, "", calls_, ""}); }
  bool stopped() const { return !rules_.parallel && whole_ > 0; }

 private:
  using Kind = AnswerEvent::Kind;
  void add(Kind kind, std::string_view text) { add_event(*out_, {kind, std::string(text), 0, ""}); }
  const AnswerRules& rules_;
  AnswerEvents* out_ = nullptr;
  size_t calls_ = 0, whole_ = 0;
};

class AnswerReader {
 public:
  virtual ~AnswerReader() = default;
  // Consumes one byte. Returns text that must be read again before anything else.
  virtual std::string put(char c) = 0;
  virtual void finish(bool cut) = 0;
  virtual bool reasoning() const = 0;
};

std::unique_ptr<AnswerReader> make_channel_reader(const AnswerRules& rules, AnswerWriter& writer);

}  // namespace moebius
