// SPDX-License-Identifier: Apache-2.0
// The text of an answer as its tokens come: whole characters, held back while they may begin a stop
// string.
#pragma once
#include <string>
#include <vector>

#include "text/stop.h"
#include "text/tokenizer.h"

namespace moebius {

struct TextRules {
  std::vector<std::string> stops;
  bool include_stop = false, skip_special = true;
  size_t min_new = 0;  // tokens before a stop string counts
};

class ChoiceText {
 public:
  ChoiceText(const Tokenizer& tokenizer, const TextRules& rules);  // the tokenizer must live longer
  std::string push(int32_t token);
  std::string finish();  // what was held back
  bool stopped() const { return stop_.stopped(); }
  const std::string& stop() const { return stop_.found(); }

 private:
  Tokenizer::Stream stream_;
  StopMatcher stop_;
  size_t min_new_, seen_ = 0;
  bool include_stop_;
};

}  // namespace moebius
