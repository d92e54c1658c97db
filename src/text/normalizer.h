// SPDX-License-Identifier: Apache-2.0
// Runs the normalizers of tokenizer.json: text in, text out. On request, one flag per byte tells
// whether the byte comes from trusted text; a byte made from several is trusted only if all of them
// were.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/oniguruma.h"

namespace moebius {

// One byte for each byte of the text: 1 trusted, 0 not. Empty: all bytes are trusted.
using TrustFlags = std::string;

struct NormalizedText {
  std::string text;    // the text, valid UTF-8
  TrustFlags trusted;  // empty or as long as text
  // true: the text begins where the input does; normalizers that remove its beginning set false
  bool from_start = true;
};

// Changes a text and its flags in place. Thread-safe; empty: no normalizer.
using Normalizer = std::function<void(NormalizedText& value)>;

// Rebuilds text and flags from pieces of the input.
class NormalizedWriter {
 public:
  explicit NormalizedWriter(const NormalizedText& in) : in_(in), flags_(!in.trusted.empty()) {
    out_.text.reserve(in.text.size() + 16);
    out_.from_start = in.from_start;
  }
  void copy(size_t begin, size_t end) {
    TextBudget::spend_bytes(end - begin);
    out_.text.append(in_.text, begin, end - begin);
    if (flags_) out_.trusted.append(in_.trusted, begin, end - begin);
  }
  void replace(size_t begin, size_t end, std::string_view with) {
    TextBudget::spend_bytes(with.size());
    out_.text += with;
    if (!flags_) return;
    const std::string_view flags = std::string_view(in_.trusted).substr(begin, end - begin);
    const bool all = flags.find('\0') == std::string_view::npos;
    out_.trusted.append(with.size(), all ? '\1' : '\0');
  }
  NormalizedText take() { return std::move(out_); }

 private:
  const NormalizedText& in_;
  bool flags_;
  NormalizedText out_;
};

// Returns a normalizer, or an empty one for JSON null. `where` is "tokenizer.json: normalizer".
// Throws Error for unknown kinds.
Normalizer parse_normalizer(const Json* json, const std::string& where);

Normalizer parse_precompiled(const Json& json, const std::string& where);

// Returns the length in bytes of the first extended grapheme of a text that is not empty
// (unicode_form.cpp).
size_t grapheme_bytes(std::string_view text);

enum class UnicodeForm { kNfc, kNfd, kNfkc, kNfkd };
// Normalizes `value` in place, in linear time except for sorting combining marks.
void to_unicode_form(NormalizedText& value, UnicodeForm form);

}  // namespace moebius
