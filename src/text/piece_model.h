// SPDX-License-Identifier: Apache-2.0
// Defines the interface of models that turn a piece of text into tokens: the "model" of
// tokenizer.json.
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
  // Returns ids whose token occurs again with a later id, with the token's index in the table: they
  // are decoded, but never produced.
  const std::vector<std::pair<int32_t, size_t>>& earlier_ids() const { return earlier_ids_; }
  // Appends the tokens of `piece`, which is valid UTF-8 unless the model works on bytes. `cache`
  // may be null; it must be used with this model only.
  virtual void encode(std::string_view piece, PieceCache* cache,
                      std::vector<int32_t>& out) const = 0;

  // Returns the least number of tokens for a piece of so many bytes; 0: unknown.
  virtual size_t least_tokens(size_t /*bytes*/) const { return 0; }

 protected:
  TokenTable vocab_;
  std::vector<std::pair<int32_t, size_t>> earlier_ids_;
};

// Returns bytes as the characters that represent them in byte-level vocabularies.
std::string stand_ins(std::string_view bytes);
// Finds the id of "<0xHH>" for each byte; -1: none.
void find_byte_tokens(const TokenTable& vocab, int32_t (&ids)[256]);

}  // namespace moebius
