// SPDX-License-Identifier: Apache-2.0
// Decoders of tokenizer.json: token strings in, text out. There is only the streaming form;
// decoding a whole list is a stream that is finished at once, so both always agree. Output is valid
// UTF-8 and never ends inside a character.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moebius {

// A decoder's rule, shared by streams.
class DecoderStage;

class Decoder {
 public:
  // `where` is "tokenizer.json: decoder". Null or absent: tokens are joined with spaces. Throws
  // Error.
  Decoder(const Json* json, const std::string& where);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  class Stream;

  // What a token behind others writes, byte by byte: also a part of a character.
  std::string token_bytes(std::string_view token) const;
  // The first token of a text loses a space at its start.
  bool strips_first_space() const;

 private:
  std::vector<std::unique_ptr<const DecoderStage>> stages_;
};

class DecoderRun;

class Decoder::Stream {
 public:
  explicit Stream(const Decoder& decoder);  // the decoder must live longer
  ~Stream();
  Stream(Stream&&) noexcept;
  Stream& operator=(Stream&&) noexcept;
  // Both append the text that is certain now.
  void push(std::string_view token, std::string& out);
  void finish(std::string& out);

 private:
  std::vector<std::unique_ptr<DecoderRun>> runs_;
};

}  // namespace moebius
