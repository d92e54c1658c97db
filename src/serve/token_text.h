// SPDX-License-Identifier: Apache-2.0
// Tokens to text: the bytes of a single token, and the text of an answer as its tokens come.
#pragma once
#include <optional>
#include <string>

#include "serve/generator.h"
#include "text/stop.h"
#include "text/tokenizer.h"

namespace moebius {

class TokenTexts {
 public:
  explicit TokenTexts(const Tokenizer& tokenizer);  // must live longer
  std::string bytes(int32_t token) const;
  // For JSON: the bytes where they are whole characters, else "bytes:\xe2\x82".
  static std::string shown(const std::string& bytes);

 private:
  const Tokenizer& tokenizer_;
  int32_t anchor_ = -1;  // a token before which others look as within a text
  std::string anchor_text_;
};

// Text of one choice: whole characters, held back while it may begin a stop string.
class ChoiceText {
 public:
  ChoiceText(const Tokenizer& tokenizer, const GenerationRequest& request);
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
