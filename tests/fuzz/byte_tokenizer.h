// SPDX-License-Identifier: Apache-2.0
// For fuzz targets that need some tokenizer: one token per byte, so that tokens cut characters.
#pragma once
#include <cstdint>
#include <cstdlib>
#include <string>

#include "text/tokenizer.h"
#include "text/unicode.h"

namespace moebius {

inline void require(bool condition) {
  if (!condition) std::abort();
}

inline Tokenizer byte_tokenizer() {
  std::string vocab;
  for (unsigned b = 0; b < 256; ++b) {
    std::string token;
    unicode::append(token, unicode::byte_to_char(static_cast<uint8_t>(b)));
    if (token == "\"" || token == "\\") token.insert(0, "\\");
    vocab += (b ? ",\"" : "\"") + token + "\":" + std::to_string(b);
  }
  return Tokenizer::from_json(
      R"({"model":{"type":"BPE","vocab":{)" + vocab +
      R"(},"merges":[]},"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false,"use_regex":true},"decoder":{"type":"ByteLevel"}})");
}

}  // namespace moebius
