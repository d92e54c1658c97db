// SPDX-License-Identifier: Apache-2.0
// Tokens to text: the bytes of a single token, and the text of an answer as its tokens come.
#pragma once
#include <optional>
#include <string>

#include "serve/generator.h"
#include "text/choice_text.h"

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

// Text of one choice of a request.
ChoiceText choice_text(const Tokenizer& tokenizer, const GenerationRequest& request);

}  // namespace moebius
