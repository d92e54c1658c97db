// SPDX-License-Identifier: Apache-2.0
// Fuzz target: a tokenizer.json, a zero byte, and text. Reading throws Error or gives a tokenizer
// whose ids stay in range, whose stream equals its batch decoding in whole characters, and which
// takes text of strangers without special tokens.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "fuzz/target.h"
#include "text/tokenizer.h"

namespace moebius::fuzz_tokenizer {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void use(const Tokenizer& t, std::string_view text) {
  const auto ids = t.encode(text, true);
  for (const int32_t id : ids) require(id >= 0);
  for (const bool skip : {false, true}) {
    Tokenizer::Stream stream(t, skip);
    std::string out;
    for (const int32_t id : ids) {
      const std::string part = stream.push(id);
      require(is_utf8(part));
      out += part;
    }
    out += stream.finish();
    require(out == t.decode(ids, skip));
    require(is_utf8(out));
  }
  const size_t half = text.size() / 2;
  t.encode_segments(
      {{std::string(text.substr(0, half)), true}, {std::string(text.substr(half)), false}}, false);
  for (const int32_t id : t.encode_segments({{std::string(text), false}}, false)) require(id >= 0);
}

}  // namespace

FUZZ_TARGET(tokenizer) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t cut = std::min(all.find('\0'), all.size());
  const std::string_view json = all.substr(0, cut);
  const std::string_view text = all.substr(std::min(cut + 1, all.size()));
  try {
    const Tokenizer t = Tokenizer::from_json(json);
    use(t, text.empty() ? std::string_view("Hello world <s>\xff 12") : text);
  } catch (const Error& e) {
    require(*e.what() != '\0');
  }
  try {
    Tokenizer::from_tiktoken(json, "").encode(text, false);
  } catch (const Error& e) {
    require(*e.what() != '\0');
  }
  return 0;
}

}  // namespace moebius::fuzz_tokenizer
