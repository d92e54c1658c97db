// SPDX-License-Identifier: Apache-2.0
#include "text/choice_text.h"

#include <algorithm>

namespace moebius {

ChoiceText::ChoiceText(const Tokenizer& tokenizer, const TextRules& rules)
    : tokenizer_(tokenizer),
      answer_(rules.answer),
      stream_(tokenizer, rules.skip_special && !rules.answer),
      stops_(rules.stops),
      stop_(rules.stops),
      min_new_(rules.min_new),
      include_stop_(rules.include_stop),
      skip_special_(rules.skip_special) {
  if (answer_) splitter_.emplace(answer_);
}

// Decodes a token. Markers are decoded even where special tokens are not shown.
std::string ChoiceText::decoded(int32_t token) {
  if (splitter_ && skip_special_ && tokenizer_.is_special(token)) {
    const auto& markers = answer_->marker_tokens;
    if (!markers || !std::binary_search(markers->begin(), markers->end(), token)) return {};
  }
  return stream_.push(token);
}

std::string ChoiceText::push(int32_t token) {
  const std::string text = decoded(token);
  ++seen_;
  if (!splitter_) return pass_content(text);
  const bool before = splitter_->reasoning();
  AnswerEvents now;
  splitter_->push(text, now);
  reasoning_tokens_ += before || splitter_->reasoning();
  return pass(now);
}

std::string ChoiceText::finish(bool cut) {
  if (stop_.stopped()) return {};
  seen_ = std::max(seen_, min_new_);
  if (!splitter_) {
    const std::string text = pass_content(stream_.finish());
    return stop_.stopped() ? text : text + stop_.finish();
  }
  AnswerEvents now;
  splitter_->push(stream_.finish(), now);
  splitter_->finish(cut, now);
  const std::string text = pass(now);
  return stop_.stopped() ? text : text + release_content();
}

// Passes events on; only content is searched for stop strings.
std::string ChoiceText::pass(const AnswerEvents& events) {
  std::string shown;
  for (const AnswerEvent& e : events) {
    if (e.kind == AnswerEvent::Kind::kContent) {
      shown += show(pass_content(e.text));
      if (stop_.stopped()) break;
      continue;
    }
    shown += release_content();
    add_event(events_, e);
  }
  return shown;
}

std::string ChoiceText::pass_content(const std::string& text) {
  if (seen_ < min_new_) return text;  // an answer this short cannot stop yet
  std::string out = stop_.push(text);
  if (stop_.stopped() && include_stop_) out += stop_.found();
  return out;
}

// Releases content that was held back: it ends here, so it cannot become a stop string.
std::string ChoiceText::release_content() {
  std::string text = stop_.finish();
  if (!text.empty()) stop_ = StopMatcher(stops_);
  return show(std::move(text));
}

std::string ChoiceText::show(std::string content) {
  add_event(events_, {AnswerEvent::Kind::kContent, content, 0, ""});
  return content;
}

}  // namespace moebius
