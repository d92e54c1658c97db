// SPDX-License-Identifier: Apache-2.0
// Runs the pre-tokenizers of tokenizer.json: they divide text into the pieces that the model
// encodes independently. A stage passes each piece to the next stage at once, and stores nothing
// else.
#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"

namespace moebius {

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  // Receives a piece, which is never empty; the view is valid during the call only. Returns false
  // if no further piece is wanted.
  virtual bool piece(std::string_view text) = 0;
};

// Passes a stage's pieces to the remaining stages, and after the last one to the sink.
struct PreNext;
// Divides or changes a text and passes the pieces on. Returns false if the sink wants no more.
using PreStage = std::function<bool(std::string_view text, bool at_start, const PreNext& next)>;

class PreTokenizer {
 public:
  // Makes the stages; null or absent JSON passes the text through. `where` is the name in messages,
  // "tokenizer.json: pre_tokenizer". Throws Error for unknown kinds.
  PreTokenizer(const Json* json, const std::string& where);

  // Returns true if the last stage writes bytes as stand-in characters. Pieces are then the raw
  // bytes before that step, because the mapping is one to one, and the model must look up tokens by
  // their bytes.
  bool gives_bytes() const { return gives_bytes_; }
  // Passes the pieces of `text` to `sink`. `at_start`: the text is at the very beginning of the
  // input. Returns false if the sink stopped.
  bool run(std::string_view text, bool at_start, PieceSink& sink) const;

 private:
  std::vector<PreStage> stages_;
  bool gives_bytes_ = false;
};

}  // namespace moebius
