// SPDX-License-Identifier: Apache-2.0
// Converts tokens to text: the bytes of a single token, and the text of an answer as it arrives.
#pragma once
#include <string>

#include "text/tokenizer.h"

namespace moebius {

class TokenTexts {
 public:
  explicit TokenTexts(const Tokenizer& tokenizer);  // the tokenizer must outlive the object
  std::string bytes(int32_t token) const;
  // Returns the bytes of a token as JSON shows them: as they are if they are whole characters, else
  // "bytes:\xe2\x82".
  static std::string shown(const std::string& bytes);

 private:
  const Tokenizer& tokenizer_;
  // Token that bytes() decodes before another one, which then has the form that it has within a
  // text; -1: none.
  int32_t anchor_ = -1;
  std::string anchor_text_;
};

}  // namespace moebius
