// SPDX-License-Identifier: Apache-2.0
// The small files of a model (config.json, tokenizer.json and their like), of a Hugging Face folder
// or of the GGUF file that stands for one.
#pragma once
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "gguf/gguf.h"

namespace moebius {

// Returns whether a path is a regular file that begins as GGUF files do, whatever its name, or that
// is called so.
bool is_gguf_file(const std::string& path);

// Returns the GGUF file that a model's path means: the file, or the only one, or only split set, of
// a folder without safetensors files. Nothing: the path is a Hugging Face folder. Throws Error for
// a folder of several.
std::optional<std::string> gguf_file_of(const std::string& model);

// Returns what a model is called: the name of its folder, or of its file without ".gguf" and the
// number of a part.
std::string model_name(std::string model);

// Opens a GGUF file, or shares the one that is open and unchanged.
std::shared_ptr<const Gguf> open_gguf(const std::string& path);

// Returns the names in a folder, sorted. Throws Error if it cannot be read.
std::vector<std::string> list_folder(const std::string& folder);

struct ModelText {
  std::string text;
  std::string place;  // for messages: the path
};
// Returns a small file of a model; nothing if it has none of this name. Throws Error for one of
// more than `most` bytes.
std::optional<ModelText> read_model_text(const std::string& model, std::string_view name,
                                         uint64_t most);
// Returns whether read_model_text() has something to return.
bool has_model_text(const std::string& model, std::string_view name);
// Returns what a user of the model's tokenizer should know; nothing for folders.
std::vector<std::string> model_text_notes(const std::string& model);
// Returns a sentence for each file beside the model that might be taken for a part of it and is not
// read.
std::vector<std::string> model_file_notes(const std::string& model);

}  // namespace moebius
