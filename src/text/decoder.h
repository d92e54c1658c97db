// SPDX-License-Identifier: Apache-2.0
// Runs the decoders of tokenizer.json: token strings in, text out, as a stream. A whole list is
// decoded by a stream that is finished at once, so that both always agree. Output is valid UTF-8
// and never ends inside a character.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moebius {

// One step of a decoder, shared by all its streams.
struct DecoderStage;

class Decoder {
 public:
  // Makes a decoder; null or absent JSON: tokens are joined with spaces. `where` is its name in
  // messages, "tokenizer.json: decoder". Throws Error for unknown kinds.
  Decoder(const Json* json, const std::string& where);

  class Stream;

  // Returns the bytes that a token writes if other tokens precede it; may be a part of a character.
  std::string token_bytes(std::string_view token) const;
  // Returns true if the first token of a text loses a space at its start.
  bool strips_first_space() const;

 private:
  std::vector<std::shared_ptr<const DecoderStage>> stages_;
};

class DecoderRun;

class Decoder::Stream {
 public:
  explicit Stream(const Decoder& decoder);  // the decoder must outlive this
  Stream(Stream&&) noexcept = default;
  Stream& operator=(Stream&&) noexcept = default;
  // Append to `out` the text that later tokens cannot change.
  void push(std::string_view token, std::string& out);
  void finish(std::string& out);

 private:
  std::vector<std::shared_ptr<DecoderRun>> runs_;
};

}  // namespace moebius
