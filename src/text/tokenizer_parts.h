// SPDX-License-Identifier: Apache-2.0
// The parts of a Tokenizer, for the files that build and run it.
#pragma once
#include <memory>
#include <mutex>
#include <unordered_map>

#include "text/added_tokens.h"
#include "text/decoder.h"
#include "text/normalizer.h"
#include "text/piece_model.h"
#include "text/pre_tokenizer.h"
#include "text/tokenizer.h"

namespace moebius {

// Holds the ids that are added before and after every text.
struct PostProcessor {
  std::vector<int32_t> before, after;
};
PostProcessor parse_post_processor(const Json* json, const std::string& where);

struct Tokenizer::Parts {
  std::string file;  // name in messages
  std::vector<AddedToken> added;
  // Added tokens that are matched before normalization, and those that are matched after.
  std::vector<AddedToken> raw_tokens, normalized_tokens;
  TokenFinder raw_finder, normalized_finder;
  Normalizer normalizer;
  PreTokenizer pre_tokenizer{nullptr, ""};
  std::unique_ptr<PieceModel> model;
  PostProcessor post;
  Decoder decoder{nullptr, ""};
  std::vector<int32_t> token_of_id;  // [ids] index into the vocabulary, or -1
  std::unordered_map<int32_t, size_t> added_of_id;
  // Decoded text of added tokens, if that is not the token itself.
  std::unordered_map<int32_t, std::string> written;
  std::unordered_map<std::string, int32_t> added_ids;
  mutable std::mutex cache_mutex;
  mutable PieceCache cache;

  // Builds the finders and the maps from `added` and the model. Throws Error if these contradict
  // each other.
  void connect();
};

// Highest id that a tokenizer may use; tables by id have room for it.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;

}  // namespace moebius
