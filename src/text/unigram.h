// SPDX-License-Identifier: Apache-2.0
// Divides a piece into the tokens with the highest sum of log-probabilities (Viterbi). Characters
// that no token covers are unknown and cost more than any token; adjacent unknown ones become one
// token.
#pragma once
#include <limits>
#include <optional>
#include <span>

#include "text/piece_model.h"

namespace moebius {

// Holds a tree of tokens by their bytes. Nodes are in breadth-first order, so that children of a
// node are adjacent.
class ByteTrie {
 public:
  ByteTrie() = default;
  // Builds the tree of a table without its empty tokens.
  explicit ByteTrie(const TokenTable& tokens);
  // Calls found(length, index in the table) for each token that `text` begins with, shortest first.
  template <class Found>
  void prefixes(std::string_view text, Found&& found) const {
    uint32_t node = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      node = child(node, static_cast<uint8_t>(text[i]));
      if (node == 0) return;
      if (nodes_[node].token >= 0) found(i + 1, static_cast<size_t>(nodes_[node].token));
    }
  }

 private:
  struct Node {
    uint32_t first_child = 0;
    uint16_t children = 0;
    int32_t token = -1;
  };
  uint32_t child(uint32_t node, uint8_t byte) const;  // returns the child for a byte; 0: none
  std::vector<Node> nodes_;
  std::vector<uint8_t> labels_;  // byte that leads to each node, ascending among siblings
};

class Unigram final : public PieceModel {
 public:
  struct Options {
    std::optional<int32_t> unk_id;
    bool byte_fallback = false;
    bool bytes = false;  // pieces are raw bytes, and tokens are written with stand-in characters
    // Lowest score of all tokens, those in earlier_ids included.
    double lowest = std::numeric_limits<double>::infinity();
    // Result of PieceModel::earlier_ids().
    std::vector<std::pair<int32_t, size_t>> earlier_ids = {};
  };
  // vocab: all tokens; scores[i]: log-probability of token i of the table.
  Unigram(TokenTable vocab, std::vector<double> scores, const Options& options);
  // Appends the tokens of the best division. Throws Error for an unknown character if there is no
  // unknown token.
  void encode(std::string_view piece, PieceCache* cache, std::vector<int32_t>& out) const override;

 private:
  struct Best {  // best division of the piece up to a position
    double score = 0;
    uint32_t from = UINT32_MAX;
    int32_t id = -1;
  };
  std::vector<Best> best_cuts(std::string_view text) const;
  void append(std::string_view token, std::vector<int32_t>& ids) const;
  std::vector<int32_t> tokens_of(std::string_view text) const;

  std::vector<double> scores_;
  Options options_;
  ByteTrie trie_;
  double unknown_score_;
  int32_t byte_ids_[256];
};

}  // namespace moebius
