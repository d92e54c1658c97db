// SPDX-License-Identifier: Apache-2.0
// Converts text to token ids and back, as the folder's tokenizer.json says. All methods of a
// Tokenizer are thread-safe. Each invalid UTF-8 sequence of the input is read as U+FFFD.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/segment.h"

namespace moebius {

class Tokenizer {
 public:
  // Reads tokenizer.json, or tiktoken.model if there is nothing else. Throws Error that names file
  // and field.
  static Tokenizer from_folder(const std::string& folder);
  // Parses the text of a tokenizer.json; `file` is its name in messages. Throws Error that names
  // file and field.
  static Tokenizer from_json(std::string_view text, const std::string& file = "tokenizer.json");
  // Reads a tiktoken file (base64 token and rank per line) and the tokenizer_config.json beside it
  // (may be empty).
  static Tokenizer from_tiktoken(std::string_view text, std::string_view tokenizer_config,
                                 const std::string& file = "tiktoken.model");

  Tokenizer(Tokenizer&&) noexcept = default;
  Tokenizer& operator=(Tokenizer&&) noexcept = default;

  // Returns the ids of a text. `add_special` adds what the post-processor adds, usually a BOS
  // token. Special tokens that are written in the text are recognised.
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;
  // Encodes the segments as one text, so that tokens may span their borders; special tokens are
  // recognised only where every byte is trusted. Pass long segments with std::move.
  std::vector<int32_t> encode_segments(std::vector<TextSegment> segments, bool add_special) const;
  // Encode as the functions above do, but return nothing if there are more than `most` tokens,
  // without encoding the rest of the text.
  std::optional<std::vector<int32_t>> encode_within(std::string_view text, bool add_special,
                                                    size_t most) const;
  std::optional<std::vector<int32_t>> encode_segments_within(std::vector<TextSegment> segments,
                                                             bool add_special, size_t most) const;

  // Returns the text of ids; ids without a token are left out, and special tokens if
  // `skip_special`.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // Returns one more than the highest id that has a token.
  size_t vocab_size() const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int32_t id) const;
  bool is_special(int32_t id) const;
  // token_bytes() returns what a token writes after other tokens, maybe a part of a character; the
  // first token of a text may lose a space (strips_first_space).
  std::string token_bytes(int32_t id) const;
  bool strips_first_space() const;
  // Throws Error if a token id is not below `rows`, the number of embeddings of a model.
  void check_fits(size_t rows) const;

  // Turns tokens into text as they arrive: returns text that cannot change any more, in whole
  // characters. All pushes and finish() together give decode() of the ids.
  class Stream {
   public:
    Stream(const Tokenizer& tokenizer, bool skip_special);  // the tokenizer must outlive this
    Stream(Stream&&) noexcept = default;
    Stream& operator=(Stream&&) noexcept = default;
    std::string push(int32_t id);
    std::string finish();

   private:
    struct State;
    std::shared_ptr<State> state_;
  };

  struct Parts;  // all data of the tokenizer; defined in tokenizer_parts.h

 private:
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::shared_ptr<Parts> parts_;
};

}  // namespace moebius
