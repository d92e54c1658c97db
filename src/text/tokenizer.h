// SPDX-License-Identifier: Apache-2.0
// Text to token ids and back, as the folder's tokenizer.json says. All methods of a built Tokenizer
// are thread-safe. Input that is not valid UTF-8 is read with U+FFFD for every invalid sequence.
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
  // Reads tokenizer.json, or tiktoken.model where that is all there is. Throws Error naming file
  // and field.
  static Tokenizer from_folder(const std::string& folder);
  // `file` names the text in messages.
  static Tokenizer from_json(std::string_view text, const std::string& file = "tokenizer.json");
  // A tiktoken file (base64 token and rank per line) and the tokenizer_config.json beside it (may
  // be empty).
  static Tokenizer from_tiktoken(std::string_view text, std::string_view tokenizer_config,
                                 const std::string& file = "tiktoken.model");

  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // `add_special`: what the post-processor adds (a BOS token, usually). Special tokens written in
  // the text are recognised.
  std::vector<int32_t> encode(std::string_view text, bool add_special) const;
  // The segments as one text, so that tokens may span their borders; special tokens are recognised
  // only where every byte is trusted. Give them up (std::move) where they are long.
  std::vector<int32_t> encode_segments(std::vector<TextSegment> segments, bool add_special) const;
  // The same, or nothing where there are more than `most` tokens: found without encoding the rest.
  std::optional<std::vector<int32_t>> encode_within(std::string_view text, bool add_special,
                                                    size_t most) const;
  std::optional<std::vector<int32_t>> encode_segments_within(std::vector<TextSegment> segments,
                                                             bool add_special, size_t most) const;

  // Ids without a token are left out, as are special tokens if `skip_special`.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const;

  // One past the highest id that has a token.
  size_t vocab_size() const;
  std::optional<int32_t> token_to_id(std::string_view token) const;
  std::optional<std::string> id_to_token(int32_t id) const;
  bool is_special(int32_t id) const;
  // What a token writes behind others, byte by byte; the first of a text may lose a space.
  std::string token_bytes(int32_t id) const;
  bool strips_first_space() const;
  // Throws Error if a token id does not fit a model with `rows` embeddings.
  void check_fits(size_t rows) const;

  // Text of tokens as they come: what can no longer change, in whole characters. All pushes and
  // finish() together give decode() of the same ids.
  class Stream {
   public:
    Stream(const Tokenizer& tokenizer, bool skip_special);  // the tokenizer must live longer
    ~Stream();
    Stream(Stream&&) noexcept;
    Stream& operator=(Stream&&) noexcept;
    std::string push(int32_t id);
    std::string finish();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

  struct Parts;  // for the readers

 private:
  explicit Tokenizer(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace moebius
