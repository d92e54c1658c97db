// SPDX-License-Identifier: Apache-2.0
// Parses model.safetensors.index.json, which says which file holds each tensor. The file can have
// tens of megabytes, so it is parsed by events.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moebius {

struct ShardIndex {
  std::vector<std::string> files;                     // plain file names, sorted, each once
  std::unordered_map<std::string, uint32_t> file_of;  // tensor name to index into files
};

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr uint64_t kMaxIndexBytes = 256'000'000;

// Parses the text. Throws Error "<path>: ..." unless it is an object with a weight_map from names
// to plain file names.
ShardIndex parse_shard_index(std::string_view text, const std::string& path);

// Returns true if the text is only a file name: no folder, no "..", no control characters.
bool is_plain_file_name(std::string_view name);

}  // namespace moebius
