// SPDX-License-Identifier: Apache-2.0
// The rules by which byte-level tokenizers cut text before they merge, under the names that GGUF
// files give them (tokenizer.ggml.pre).
#pragma once
#include <array>
#include <string_view>

namespace moebius {

struct PreTokenizerRule {
  std::string_view names;  // separated by spaces
  // Regular expressions, applied one after the other; each match is a piece. Empty: no more.
  std::array<std::string_view, 6> stages;
  bool ignore_merges = false;  // a piece that is a token becomes that token
  bool adds_bos = false;       // where the file does not state it
};

// Returns the rule of a name; null: unknown.
const PreTokenizerRule* find_pre_tokenizer(std::string_view name);

}  // namespace moebius
