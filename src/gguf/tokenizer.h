// SPDX-License-Identifier: Apache-2.0
// Writes a GGUF file's tokenizer in the words of a Hugging Face folder's files. All values come
// from a stranger's file. The text of tokenizer.json uses two forms that only this library reads: a
// list of tokens and scores as the vocabulary of BPE, where "" stands for an id without a token and
// a token may appear twice, and "merges": "cuts", every division of a token into two.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "gguf/gguf.h"

namespace moebius {

// Returns tokenizer.json. Throws Error that names the key for broken metadata, and for a kind of
// tokenizer that cannot be built: token ids work without it.
std::string gguf_tokenizer_json(const GgufMetadata& metadata);
// Returns tokenizer_config.json: special tokens and chat templates.
std::string gguf_tokenizer_config_json(const GgufMetadata& metadata);
// Returns generation_config.json: tokens that end an answer, defaults of sampling. `vocabulary`:
// rows of the token table, for files that list no tokens.
std::string gguf_generation_config_json(const GgufMetadata& metadata, uint64_t vocabulary);
// Returns what a user of the tokenizer should know: ids that were ignored, rules that were guessed.
std::vector<std::string> gguf_tokenizer_notes(const GgufMetadata& metadata);

}  // namespace moebius
