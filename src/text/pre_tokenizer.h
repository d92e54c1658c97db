// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizers of tokenizer.json: they cut a stretch of text into the pieces that the model
// merges independently. Stages hand each piece on to the next stage at once; nothing but the piece
// in hand is stored.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moebius {

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  // Never empty; the view lives during the call only. False: no further piece is wanted.
  virtual bool piece(std::string_view text) = 0;
};

class PreStage;

class PreTokenizer {
 public:
  // `where` is "tokenizer.json: pre_tokenizer". A null or absent JSON passes the text through.
  // Throws Error.
  PreTokenizer(const Json* json, const std::string& where);
  ~PreTokenizer();
  PreTokenizer(PreTokenizer&&) noexcept;
  PreTokenizer& operator=(PreTokenizer&&) noexcept;

  // True when the last stage writes bytes as stand-in characters. The pieces given out then are the
  // raw bytes before that step (the map is one to one), and the model must look tokens up by their
  // bytes.
  bool gives_bytes() const { return gives_bytes_; }
  // `at_start`: the text stands at the very beginning of the input. False: the sink wants no more.
  bool run(std::string_view text, bool at_start, PieceSink& sink) const;

 private:
  std::vector<std::unique_ptr<PreStage>> stages_;
  bool gives_bytes_ = false;
};

}  // namespace moebius
