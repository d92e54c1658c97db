// SPDX-License-Identifier: Apache-2.0
// Normalizers of tokenizer.json: text in, text out. Where the caller asks for it, one flag per byte
// travels along that says whether the byte comes from trusted text; a byte made from several is
// trusted only if all of them were.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moebius {

// One byte per byte of the text: 1 trusted, 0 not. Empty: everything is trusted.
using TrustFlags = std::string;

struct NormalizedText {
  std::string text;    // valid UTF-8
  TrustFlags trusted;  // empty or as long as text
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalizedText& value) const = 0;
};

// Null for JSON null. `where` is "tokenizer.json: normalizer". Throws Error for what is not known.
std::unique_ptr<Normalizer> parse_normalizer(const Json* json, const std::string& where);

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
// Normalizes in time linear in the text up to sorting of combining marks.
void to_unicode_form(NormalizedText& value, UnicodeForm form);

}  // namespace moebius
