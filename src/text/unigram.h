// SPDX-License-Identifier: Apache-2.0
// The cut of a piece into tokens with the highest sum of log-probabilities (Viterbi). A character
// that no token covers is unknown and costs more than any token; neighbouring unknown ones are one.
#pragma once
#include <limits>
#include <optional>
#include <span>

#include "text/piece_model.h"

namespace moebius {

// Tokens as paths of bytes. Nodes stand in breadth-first order, so a node's children are neighbours.
class ByteTrie {
 public:
  ByteTrie() = default;
  explicit ByteTrie(const TokenTable& tokens);  // empty tokens are left out
  // Calls found(length, index in the table) for every token that `text` begins with, shortest first.
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
  uint32_t child(uint32_t node, uint8_t byte) const;  // 0: none
  std::vector<Node> nodes_;
  std::vector<uint8_t> labels_;  // the byte that leads to each node, ascending among siblings
};

class Unigram final : public PieceModel {
 public:
  struct Options {
    std::optional<int32_t> unk_id;
    bool byte_fallback = false;
    bool bytes = false;  // pieces are raw bytes, tokens are written with stand-in characters
    double lowest = std::numeric_limits<double>::infinity();   // also of the entries below
    std::vector<std::pair<int32_t, size_t>> earlier_ids = {};  // PieceModel::earlier_ids
  };
  // `scores`: log-probability of the i-th token of the table.
  Unigram(TokenTable vocab, std::vector<double> scores, const Options& options);
  // Throws Error for an unknown character where no token is the unknown one.
  void encode(std::string_view piece, PieceCache* cache, std::vector<int32_t>& out) const override;

 private:
  struct Best {  // way to a position of the piece
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
