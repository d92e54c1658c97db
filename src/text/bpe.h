// SPDX-License-Identifier: Apache-2.0
// Encodes one piece of text by byte-pair encoding: symbols (characters, bytes or byte-fallback
// tokens) are joined by the merge of lowest rank, leftmost first, until no merge applies. Takes n
// log n time for every piece.
#pragma once
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>
#include <vector>

#include "text/piece_model.h"

namespace moebius {

struct BpeOptions {
  bool bytes = false;  // pieces are raw bytes, and tokens are written with stand-in characters
  bool byte_fallback = false, fuse_unk = false, ignore_merges = false;
  std::optional<std::string> unk_token;
  std::string continuing_subword_prefix, end_of_word_suffix;
  // Result of PieceModel::earlier_ids().
  std::vector<std::pair<int32_t, size_t>> earlier_ids = {};
};

class Bpe final : public PieceModel {
 public:
  // `vocab`: all tokens with their ids; `where` names the field in messages. Throws Error if the
  // options do not fit the vocabulary.
  Bpe(TokenTable vocab, BpeOptions options, std::string where);
  void reserve(size_t merges) { merges_.reserve(merges); }
  // Adds the next merge in order of rank; both parts and their concatenation must be in the
  // vocabulary. Throws Error.
  void add_merge(std::string_view left, std::string_view right);
  void add_merge(int32_t left, int32_t right, uint32_t rank, int32_t merged);
  // Adds every division of a token of at most `longest` bytes into two tokens, after the merges so
  // far. scores[i]: score of token i of the table; the highest merges first, then the lowest id.
  // Unknown and byte-fallback tokens take no part.
  void add_cuts(std::span<const double> scores, size_t longest);

  void encode(std::string_view piece, PieceCache* cache, std::vector<int32_t>& out) const override;
  size_t least_tokens(size_t bytes) const override;

 private:
  void encode_segment(std::string_view piece, PieceCache* cache, std::vector<int32_t>& out) const;
  void symbols(std::string_view piece, std::vector<int32_t>& ids) const;
  void slow_symbol(std::string_view character, bool first, bool last, bool& pending_unknown,
                   std::vector<int32_t>& ids) const;
  void merge_short(std::vector<int32_t>& ids) const;
  void merge_long(std::vector<int32_t>& ids) const;
  int32_t char_id(std::string_view character) const;
  void learn_joints(std::string_view token);
  bool may_join(char32_t left, char32_t right, bool known) const;

  TokenTable raw_;  // tokens by their bytes, if pieces are bytes and whole pieces are looked up
  MergeTable merges_;
  BpeOptions options_;
  std::string where_;
  uint32_t next_rank_ = 0;
  int32_t unk_id_ = -1;
  int32_t byte_ids_[256];      // ids of the characters that stand for bytes
  int32_t fallback_ids_[256];  // ids of the tokens "<0xHH>", which stand for bytes
  bool full_fallback_ = false;
  size_t longest_token_ = 0;  // length in bytes; 0: a token may cover any number of bytes
  // Pairs of adjacent characters inside merged tokens: text can be cut between all other pairs. Not
  // used if pieces are bytes.
  bool can_cut_ = false;
  std::vector<uint8_t> ascii_joints_;
  std::unordered_set<uint64_t> joints_;
};

}  // namespace moebius
