// SPDX-License-Identifier: Apache-2.0
// Tokens that are cut out of the text before the model sees it. The finder is an Aho-Corasick
// automaton that reports leftmost-longest matches; its time is linear in the text whatever the
// tokens are.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/json.h"
#include "text/normalizer.h"

namespace moebius {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false;
  bool normalized = true;  // matched after normalization
  bool special =
      false;  // left out of decoded text on request, never matched in text that is not trusted
};

// The "added_tokens" array of tokenizer.json. Throws Error for bad fields and for one id with two
// contents.
std::vector<AddedToken> parse_added_tokens(const Json* json, const std::string& where);

class TokenFinder {
 public:
  TokenFinder() { build({}); }
  // `patterns[i]` finds tokens[i]; empty patterns are never found.
  void build(const std::vector<std::string>& patterns);
  bool empty() const { return pattern_length_.empty(); }
  struct Match {
    size_t begin = 0, end = 0, pattern = 0;
  };
  bool search(std::string_view text, size_t from, Match& match) const;

 private:
  struct Node {
    int32_t fail = 0;
    int32_t pattern = -1;  // that ends here
    int32_t report =
        0;  // nearest node on the failure chain, this one included, where a pattern ends; 0: none
    uint32_t depth = 0;
  };
  int32_t child(int32_t node, uint8_t byte) const;
  int32_t step(int32_t node, uint8_t byte) const;
  std::vector<Node> nodes_;
  int32_t root_[256];
  std::unordered_map<uint64_t, int32_t> edges_;  // node << 8 | byte
  std::vector<size_t> pattern_length_;
};

// A stretch of text: an added token, or text between them (id < 0).
struct TokenSpan {
  size_t begin = 0, end = 0;
  int32_t id = -1;
};

// Cuts `text` at the tokens found. `trusted` as in NormalizedText: a special token whose bytes are
// not all trusted is text. Ends after the first token beyond `most`.
std::vector<TokenSpan> cut_added_tokens(std::string_view text, const TrustFlags& trusted,
                                        const TokenFinder& finder,
                                        const std::vector<AddedToken>& tokens,
                                        size_t most = SIZE_MAX);

}  // namespace moebius
