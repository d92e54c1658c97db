// SPDX-License-Identifier: Apache-2.0
// What turns a piece of text into tokens: the "model" of tokenizer.json.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/token_table.h"

namespace moebius {

class PieceModel {
 public:
  explicit PieceModel(TokenTable vocab) : vocab_(std::move(vocab)) {}
  virtual ~PieceModel() = default;
  const TokenTable& vocab() const { return vocab_; }
  // Ids whose token stands in the vocabulary again with a later id: they are decoded, never made.
  // With the index of the token in the table.
  const std::vector<std::pair<int32_t, size_t>>& earlier_ids() const { return earlier_ids_; }
  // Appends the tokens of `piece`, which is valid UTF-8 unless the model was told that pieces are
  // bytes. `cache` may be null; it must have been used with this model only.
  virtual void encode(std::string_view piece, PieceCache* cache,
                      std::vector<int32_t>& out) const = 0;

  // A piece of so many bytes becomes at least so many tokens; 0: not known.
  virtual size_t least_tokens(size_t /*bytes*/) const { return 0; }

 protected:
  TokenTable vocab_;
  std::vector<std::pair<int32_t, size_t>> earlier_ids_;
};

// Bytes as the characters that stand for them in byte-level vocabularies.
std::string stand_ins(std::string_view bytes);
// The id of "<0xHH>" for every byte, -1 where there is none.
void find_byte_tokens(const TokenTable& vocab, int32_t (&ids)[256]);

}  // namespace moebius
