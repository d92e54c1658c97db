// SPDX-License-Identifier: Apache-2.0
// All tensors of a folder: a single model.safetensors or the shards of an index, merged and checked.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"

namespace moebius {

class TensorStore {
 public:
  // Warnings (tensor missing from the map, both single file and index present and different ...) are appended to `warnings`.
  static TensorStore open_folder(const std::string& folder, std::vector<std::string>& warnings);
  static TensorStore open_file(const std::string& path);
  std::span<const TensorInfo> tensors() const { return tensors_; }  // sorted by name
  const TensorInfo* find(std::string_view name) const;
  const TensorInfo& require(std::string_view name) const;           // throws Error naming what is missing
  const SafetensorsFile& file_of(const TensorInfo& tensor) const { return files_[tensor.file]; }
  std::span<const SafetensorsFile> files() const { return files_; }
  std::string where(const TensorInfo& tensor) const;                // "model-00001.safetensors: name" for messages
  void read(const TensorInfo& tensor, uint64_t offset, std::span<uint8_t> out) const { files_[tensor.file].read(tensor, offset, out); }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string_view, size_t> by_name_;
  uint64_t total_bytes_ = 0;
};

}  // namespace moebius
