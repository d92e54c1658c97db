// SPDX-License-Identifier: Apache-2.0
// Schemas and expressions of strangers: whatever they are, they are refused in words or become a
// grammar that never gets stuck. The first byte says which, the rest is the text and, behind a zero,
// bytes that choose among what the grammar allows.
#include <cstddef>
#include <cstdint>

#include "fuzz/byte_tokenizer.h"
#include "fuzz/target.h"
#include "text/grammar/masks.h"

namespace moebius::fuzz_grammar {
namespace {

GrammarPtr grammar_of(uint8_t kind, std::string_view text) {
  // A tenth of the work that a request may cost, for more runs.
  GrammarBuilder builder(nullptr, {4000, 40000, 600'000});
  if (kind % 2 == 0) return builder.build(builder.regex(text, "regex"));
  return builder.build(builder.schema(parse_json_strictly(text, "schema"), "schema"));
}

}  // namespace

FUZZ_TARGET(grammar) {
  if (size < 2 || size > 4096) return 0;
  const std::string_view all(reinterpret_cast<const char*>(data) + 1, size - 1);
  const size_t end = all.find('\0');
  const std::string_view text = all.substr(0, end);
  std::string_view choices = end == std::string_view::npos ? "" : all.substr(end + 1);
  GrammarPtr grammar;
  try {
    grammar = grammar_of(data[0], text);
  } catch (const GrammarError& e) {
    require(!e.code.empty() && e.what()[0] != '\0');
    return 0;
  } catch (const Error&) {
    return 0;
  }
  static TokenMasks masks(byte_tokenizer());
  GrammarMatcher m(grammar);
  TokenMask mask;
  for (size_t n = 0; n < 64 && !m.must_end(); ++n) {
    masks.find(m, {}, false, mask);
    require(mask.count > 0);  // nothing that was begun is stuck
    const size_t pick = choices.empty() ? n : static_cast<uint8_t>(choices[n % choices.size()]);
    size_t at = pick % mask.count;
    int32_t token = 0;
    while (!mask.has(token) || at-- > 0) ++token;
    require(masks.accept(m, token, false));
  }
  require(!m.must_end() || m.may_end());
  return 0;
}

}  // namespace moebius::fuzz_grammar
