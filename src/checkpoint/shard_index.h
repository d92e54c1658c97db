// SPDX-License-Identifier: Apache-2.0
// model.safetensors.index.json: which tensor lies in which file. Read by events (real ones reach
// tens of megabytes).
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace moebius {

struct ShardIndex {
  std::vector<std::string> files;                     // distinct plain file names, sorted
  std::unordered_map<std::string, uint32_t> file_of;  // tensor name to index into files
};

inline constexpr std::string_view kIndexName = "model.safetensors.index.json";
inline constexpr uint64_t kMaxIndexBytes = 256'000'000;

// Throws Error "<path>: ..." unless `text` is an object with a weight_map from names to plain file
// names.
ShardIndex parse_shard_index(std::string_view text, const std::string& path);

// Nothing but a name: no folder, no "..", no control characters.
bool is_plain_file_name(std::string_view name);

}  // namespace moebius
