// SPDX-License-Identifier: Apache-2.0
#include "serve/token_text.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/utf8.h"
#include "text/unicode.h"

namespace moebius {
namespace {

// Returns the byte of a token such as "<0xE2>", as tokenizers with byte fallback write it.
std::optional<char> byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  const std::string digits(token.substr(3, 2));
  if (digits.find_first_not_of("0123456789ABCDEFabcdef") != std::string::npos) return std::nullopt;
  return static_cast<char>(std::stoi(digits, nullptr, 16));
}

// Returns the bytes of a token that is no whole character, which the vocabulary writes with
// stand-ins.
std::optional<std::string> stand_ins(std::string_view token) {
  if (const auto byte = byte_token(token)) return std::string(1, *byte);
  std::string out;
  for (size_t i = 0; i < token.size();) {
    const size_t n = utf8_length(token.substr(i));
    if (n == 0) return std::nullopt;
    char32_t code = static_cast<unsigned char>(token[i]);
    if (n > 1) code &= 0x7fu >> n;
    for (size_t k = 1; k < n; ++k)
      code = (code << 6) | (static_cast<unsigned char>(token[i + k]) & 0x3fu);
    const int byte = unicode::char_to_byte(code);
    if (byte < 0) return std::nullopt;
    out += static_cast<char>(byte);
    i += n;
  }
  return out;
}

}  // namespace

TokenTexts::TokenTexts(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
  const auto most = static_cast<int32_t>(std::min<size_t>(tokenizer.vocab_size(), 4096));
  for (int32_t id = 0; id < most && anchor_ < 0; ++id) {
    const std::string text = tokenizer.decode({&id, 1}, false);
    if (text.size() != 1 || !(text[0] >= 'a' && text[0] <= 'z')) continue;
    anchor_ = id;
    anchor_text_ = text;
  }
}

std::string TokenTexts::bytes(int32_t token) const {
  std::string text;
  if (anchor_ >= 0) {
    const int32_t pair[] = {anchor_, token};
    text = tokenizer_.decode(pair, false);
    if (text.starts_with(anchor_text_)) text.erase(0, anchor_text_.size());
  } else {
    text = tokenizer_.decode({&token, 1}, false);
  }
  if (text.find("\xef\xbf\xbd") == std::string::npos) return text;
  const auto written = tokenizer_.id_to_token(token);
  const auto raw = written ? stand_ins(*written) : std::nullopt;
  return raw.value_or(text);
}

std::string TokenTexts::shown(const std::string& bytes) {
  if (is_utf8(bytes)) return bytes;
  std::string out = "bytes:";
  for (const char c : bytes) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

}  // namespace moebius
