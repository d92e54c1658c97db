// SPDX-License-Identifier: Apache-2.0
// Holds all tokens of a vocabulary in a tree by their bytes, stored in depth-first order, so that
// visiting it is a loop, and skipping a branch is a jump.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace moebius {

class Tokenizer;

struct TrieNodes {
  struct Node {
    uint32_t next;      // first node after this branch
    uint32_t first_id;  // index of the first id in this branch; ids of the node itself come first
    uint16_t ids;       // number of ids of the node itself
    uint16_t depth;     // number of bytes up to the node, from 1
    uint8_t byte;
  };
  std::vector<Node> nodes;
  std::vector<int32_t> ids;
  size_t ids_end(uint32_t node) const {  // returns the end of the ids in a node's branch
    const uint32_t next = nodes[node].next;
    return next < nodes.size() ? nodes[next].first_id : ids.size();
  }
};
// Builds a tree; `words` may be in any order, and equal words share a node.
TrieNodes make_trie(std::vector<std::pair<std::string_view, int32_t>> words);

class TokenTrie {
 public:
  // Builds the tree of a tokenizer's tokens; special tokens are left out.
  explicit TokenTrie(const Tokenizer& tokenizer);

  const TrieNodes& trie() const { return trie_; }
  size_t vocab() const { return begin_.size() - 1; }
  size_t words() const { return (vocab() + 63) / 64; }  // words of a mask with one bit per token
  // Returns the bytes of a token; empty: it has no text.
  std::string_view bytes(int32_t token) const {
    const auto t = static_cast<size_t>(token);
    if (token < 0 || t >= vocab()) return {};
    return std::string_view(text_).substr(begin_[t], begin_[t + 1] - begin_[t]);
  }
  // Returns the special tokens, ascending.
  const std::vector<int32_t>& special() const { return special_; }
  // Returns true if the first token with text loses a space at its start.
  bool strips_first_space() const { return strips_; }
  // Returns the child of the root for this byte; UINT32_MAX: no token begins with it.
  uint32_t child_of_root(uint8_t byte) const { return roots_[byte]; }
  // Returns the longest token that the text begins with; -1: none.
  int32_t longest_in(std::string_view text) const;

 private:
  std::string text_;  // texts of all tokens, concatenated
  std::vector<uint32_t> begin_;
  std::vector<int32_t> special_;
  TrieNodes trie_;
  uint32_t roots_[256];
  bool strips_ = false;
};

}  // namespace moebius
