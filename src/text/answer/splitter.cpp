// SPDX-License-Identifier: Apache-2.0
#include "text/answer/splitter.h"

#include <array>

#include "text/answer/reader.h"

namespace moebius {
namespace {

constexpr size_t kMostRaw = 1 << 16;  // most bytes of a call before its name is known

// Reads text with markers in it: all formats but GPT-OSS's.
class MarkedReader final : public AnswerReader {
 public:
  MarkedReader(const AnswerRules& rules, AnswerWriter& writer) : rules_(rules), writer_(writer) {
    if (rules.format != nullptr && rules.tools) section_ = rules.format->section_begin;
    if (rules.reasoning == nullptr || rules.start == AnswerStart::kContent)
      state_ = State::kContent;
    else if (rules.start == AnswerStart::kReasoning)
      state_ = State::kReasoning;
  }

  std::string put(char c) override {
    if (state_ == State::kCall) return call_byte(c);
    pending_ += c;
    if (state_ == State::kStart) return start();
    if (state_ == State::kContent) return content();
    reason();
    return {};
  }

  void finish(bool cut) override {
    if (state_ == State::kCall) return finish_call(cut);
    if (state_ == State::kReasoning)
      writer_.reasoning(pending_);
    else if (!after_call_ || !blank(pending_))
      writer_.content(pending_);
    pending_.clear();
  }

  bool reasoning() const override {
    return state_ == State::kReasoning || (state_ == State::kCall && from_ == State::kReasoning &&
                                           parser_ != nullptr && !parser_->in_call());
  }

 private:
  enum class State : uint8_t { kStart, kReasoning, kContent, kCall };

  static bool blank(std::string_view text) {
    return text.find_first_not_of(kJsonSpaces) == text.npos;
  }

  // Decides by the first bytes whether the answer begins with reasoning's marker, white space
  // before it, or content.
  std::string start() {
    std::string_view text = pending_;
    while (!text.empty() && is_json_space(text.front())) text.remove_prefix(1);
    if (text == rules_.reasoning->begin) {
      pending_.clear();
      state_ = State::kReasoning;
      return {};
    }
    if (rules_.reasoning->begin.starts_with(text)) return {};
    state_ = State::kContent;
    return std::exchange(pending_, {});
  }

  void reason() {
    const std::array<std::string_view, 2> markers = {rules_.reasoning->end, section_};
    const MarkerAt at = marker_at_end(pending_, markers);
    const size_t shown = pending_.size() - at.bytes;
    writer_.reasoning(std::string_view(pending_).substr(0, shown));
    pending_.erase(0, shown);
    if (at.marker == 1) return begin_section(pending_, true);
    if (at.marker == kNoMarker) return;
    pending_.clear();
    writer_.reasoning_end();
    state_ = State::kContent;
  }

  // Returns whether the answer begins with a call in a format that needs no marker.
  bool unmarked(std::string_view text) const {
    if (section_.empty() || !fresh_) return false;
    const char first = rules_.format->unmarked;
    return first != '\0' && text.back() == first && blank(text.substr(0, text.size() - 1));
  }

  std::string content() {
    if (unmarked(pending_)) {
      const char c = pending_.back();
      pending_.pop_back();
      begin_section(pending_, false);
      return std::string(1, c);
    }
    const ReasoningFormat* around = framed_by(rules_.format, rules_.reasoning);
    std::array<std::string_view, 4> markers = {section_};
    if (around != nullptr)
      markers = {section_, around->content_begin, around->content_end, around->message_end};
    const MarkerAt at = marker_at_end(pending_, markers);
    size_t shown = pending_.size() - at.bytes;
    // White space before a call belongs to its marker: all of it if nothing stands before, else the
    // line feed that templates write.
    if (!section_.empty() && (at.marker == kNoMarker || at.marker == 0)) {
      if (fresh_ && blank(std::string_view(pending_).substr(0, shown)))
        shown = 0;
      else if (shown > 0 && pending_[shown - 1] == '\n')
        --shown;
    }
    if (shown > 0) {
      writer_.content(std::string_view(pending_).substr(0, shown));
      fresh_ = after_call_ = false;
      pending_.erase(0, shown);
    }
    if (at.marker == 0)
      begin_section(pending_, true);
    else if (at.marker != kNoMarker)
      pending_.clear();
    return {};
  }

  // Begins a section of calls. raw: its white space and marker, which become content again if there
  // is no call after all.
  void begin_section(std::string raw, bool marked) {
    pending_.clear();
    from_ = state_;
    lead_ = raw.size();
    raw_ = std::move(raw);
    calls_ = 0;
    parser_ = make_call_parser(*rules_.format, sink_, marked);
    state_ = State::kCall;
  }

  std::string call_byte(char c) {
    const CallParser::Take take =
        raw_.size() < kMostRaw ? parser_->put(c) : CallParser::Take::kBroken;
    switch (take) {
      case CallParser::Take::kMore:
        if (!parser_->in_call()) raw_ += c;
        return {};
      case CallParser::Take::kDone:
        end_section();
        return {};
      case CallParser::Take::kDoneBefore:
        end_section();
        return std::string(1, c);
      case CallParser::Take::kBroken:
        break;
    }
    return break_call() + c;
  }

  void end_section() {
    parser_.reset();
    raw_.clear();
    state_ = State::kContent;
    fresh_ = after_call_ = true;
  }

  // Ends a call that cannot be read; returns its text, which is then read as content.
  std::string break_call() {
    if (parser_->in_call()) {
      parser_->close();
      writer_.end_broken();
      end_section();
      return {};
    }
    writer_.broken();
    std::string again = std::exchange(raw_, {});
    if (calls_ > 0) {
      end_section();
      return again;
    }
    parser_.reset();
    state_ = from_;
    const std::string lead = again.substr(0, lead_);
    if (state_ == State::kReasoning) {
      writer_.reasoning(lead);
    } else {
      writer_.content(lead);
      fresh_ = after_call_ = false;
    }
    again.erase(0, lead_);
    return again;
  }

  void finish_call(bool cut) {
    if (parser_->in_call()) {
      if (cut) return;
      parser_->close();
      writer_.end_broken();
      return;
    }
    if (cut || parser_->finish()) return;
    writer_.broken();
    if (calls_ == 0 && from_ == State::kReasoning)
      writer_.reasoning(raw_);
    else
      writer_.content(raw_);
  }

  // Passes the parser's events to the writer; reasoning ends when a call begins.
  class Sink final : public CallSink {
   public:
    explicit Sink(MarkedReader& reader) : r_(reader) {}
    const Tool* tool(std::string_view name) const override { return r_.writer_.tool(name); }
    void begin(std::string_view name, std::string_view id) override {
      if (r_.from_ == State::kReasoning) r_.writer_.reasoning_end();
      r_.from_ = State::kContent;
      r_.raw_.clear();
      r_.lead_ = 0;
      ++r_.calls_;
      r_.writer_.begin(name, id);
    }
    void arguments(std::string_view bytes) override { r_.writer_.arguments(bytes); }
    void end() override {
      r_.raw_.clear();
      r_.writer_.end();
    }

   private:
    MarkedReader& r_;
  };

  const AnswerRules& rules_;
  AnswerWriter& writer_;
  Sink sink_{*this};
  std::string_view section_;  // marker of a section; empty: the format has no calls
  State state_ = State::kStart, from_ = State::kContent;
  std::string pending_;  // text that was not passed on yet
  std::string raw_;      // text of the current call, kept while it may turn out to be none
  size_t lead_ = 0, calls_ = 0;
  bool fresh_ = true;        // no content since the beginning or the last call
  bool after_call_ = false;  // a call preceded
  std::unique_ptr<CallParser> parser_;
};

}  // namespace

AnswerSplitter::AnswerSplitter(std::shared_ptr<const AnswerRules> rules)
    : rules_(std::move(rules)), writer_(std::make_unique<AnswerWriter>(*rules_)) {
  reader_ = has_channels(rules_->format, rules_->reasoning)
                ? make_channel_reader(*rules_, *writer_)
                : std::make_unique<MarkedReader>(*rules_, *writer_);
}

void AnswerSplitter::push(std::string_view text, AnswerEvents& out) {
  writer_->into(out);
  std::string again;  // to be read before the next bytes, its last byte first
  for (const char next : text) {
    again = next;
    while (!again.empty() && !stopped()) {
      const char c = again.back();
      again.pop_back();
      const std::string more = reader_->put(c);
      again.append(more.rbegin(), more.rend());
    }
    if (stopped()) return;
  }
}

void AnswerSplitter::finish(bool cut, AnswerEvents& out) {
  writer_->into(out);
  if (!stopped()) reader_->finish(cut);
}

bool AnswerSplitter::reasoning() const { return reader_->reasoning(); }
bool AnswerSplitter::stopped() const { return writer_->stopped(); }

}  // namespace moebius
