// SPDX-License-Identifier: Apache-2.0
// A model in which each piece is a word of the vocabulary, or the unknown token.
#pragma once
#include "text/piece_model.h"

namespace moebius {

class WordLevel final : public PieceModel {
 public:
  // `bytes`: pieces are raw bytes, and words are written with stand-in characters.
  WordLevel(TokenTable vocab, const std::string& unk_token, bool bytes);
  // Appends the id of the word. Throws Error for an unknown word if the vocabulary has no unknown
  // token.
  void encode(std::string_view piece, PieceCache* cache, std::vector<int32_t>& out) const override;

 private:
  std::string unk_token_;
  int32_t unk_id_;
  bool bytes_;
};

}  // namespace moebius
