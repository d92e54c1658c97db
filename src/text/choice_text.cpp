// SPDX-License-Identifier: Apache-2.0
#include "text/choice_text.h"

namespace moebius {

ChoiceText::ChoiceText(const Tokenizer& tokenizer, const TextRules& rules)
    : stream_(tokenizer, rules.skip_special),
      stop_(rules.stops),
      min_new_(rules.min_new),
      include_stop_(rules.include_stop) {}

std::string ChoiceText::push(int32_t token) {
  std::string text = stream_.push(token);
  if (++seen_ < min_new_) return text;  // too early to stop
  if (stop_.stopped()) return {};
  text = stop_.push(text);
  if (stop_.stopped() && include_stop_) text += stop_.found();
  return text;
}

std::string ChoiceText::finish() {
  if (stop_.stopped()) return {};
  std::string text = stop_.push(stream_.finish());
  if (stop_.stopped() && include_stop_) return text + stop_.found();
  return text + stop_.finish();
}

}  // namespace moebius
