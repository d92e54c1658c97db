// SPDX-License-Identifier: Apache-2.0
// Finds added tokens, which are cut out of a text before the model's tokenizer runs. The finder is
// an Aho-Corasick automaton that reports leftmost-longest matches, in time linear in the text
// whatever the tokens are.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "text/normalizer.h"

namespace moebius {

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool single_word = false, lstrip = false, rstrip = false;
  bool normalized = true;  // true: searched in the normalized text; false: in the text as given
  // true: left out of decoded text if the caller asks, and never matched in untrusted text.
  bool special = false;
};

// Parses the "added_tokens" array of tokenizer.json; null JSON: no tokens. Throws Error for bad
// fields and for an id with two contents.
std::vector<AddedToken> parse_added_tokens(const Json* json, const std::string& where);

class TokenFinder {
 public:
  TokenFinder() { build({}); }
  // Builds the automaton for tokens with these texts; patterns that are empty never match. Throws
  // Error that begins with `where` for texts that need too many states.
  void build(const std::vector<std::string>& patterns, const std::string& where = "");
  bool empty() const { return pattern_length_.empty(); }
  struct Match {
    size_t begin = 0, end = 0, pattern = 0;
  };
  bool search(std::string_view text, size_t from, Match& match) const;

 private:
  // Nodes lie by depth, so that the children of each follow one another, in the order of their bytes.
  struct Node {
    int32_t fail = 0;
    int32_t pattern = -1;  // pattern that ends at this node; -1: none
    // Nearest node on the failure chain, this one included, at which a pattern ends; 0: none.
    int32_t report = 0;
    uint32_t depth = 0;
    uint32_t first = 0;  // the first child
    uint16_t children = 0;
    uint8_t byte = 0;  // the byte that leads here
  };
  int32_t child(int32_t node, uint8_t byte) const;
  int32_t step(int32_t node, uint8_t byte) const;
  std::vector<Node> nodes_;
  int32_t root_[256];
  std::vector<size_t> pattern_length_;
};

// A range of a text: an added token, or the text between two of them (id < 0).
struct TokenSpan {
  size_t begin = 0, end = 0;
  int32_t id = -1;
};

// Divides `text` into added tokens and the text between them. `trusted` is as in NormalizedText: a
// special token with an untrusted byte counts as text. Stops after the first token beyond `most`.
std::vector<TokenSpan> cut_added_tokens(std::string_view text, const TrustFlags& trusted,
                                        const TokenFinder& finder,
                                        const std::vector<AddedToken>& tokens,
                                        size_t most = SIZE_MAX);

}  // namespace moebius
