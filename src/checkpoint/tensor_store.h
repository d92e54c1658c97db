// SPDX-License-Identifier: Apache-2.0
// All tensors of a folder: a single model.safetensors or the shards of an index, merged and
// checked.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace moebius {

struct ShardIndex;

// Where symbolic links of a model folder may lead. kInside: to files of the folder, or as the hub's
// cache keeps its files (snapshots/<revision>/name -> ../../blobs/<hash>). kAnywhere: for a folder
// that the user named and answers for.
enum class Links : uint8_t { kInside, kAnywhere };

// Throws Error unless the folder has safetensors files of a model; the message names what it has instead.
void check_weight_files(const std::string& folder);

// The path of a file of a model folder; `name` must be a plain file name. Throws Error.
std::string file_in_folder(const std::string& folder, std::string_view name,
                           Links links = Links::kInside);

class TensorStore {
 public:
  TensorStore() = default;
  TensorStore(TensorStore&&) noexcept = default;  // addresses of tensors survive a move
  TensorStore& operator=(TensorStore&&) noexcept = default;
  // Warnings (tensor missing from the map, both single file and index present and different ...)
  // are appended to `warnings`. Files called consolidated*, adapter* or optimizer* are never looked
  // at.
  static TensorStore open_folder(const std::string& folder, std::vector<std::string>& warnings,
                                 Links links = Links::kInside);
  static TensorStore open_file(const std::string& path);
  // Tensors in memory, which must outlive the store.
  static TensorStore from_memory(const std::string& name, std::span<const TensorData> tensors);
  // The same tensors, with more files to read from; `tensors` are those of the files.
  TensorStore with_files(std::span<const std::string> paths,
                         std::vector<TensorInfo>& tensors) const;
  std::span<const TensorInfo> tensors() const { return tensors_; }  // sorted by name
  const TensorInfo* find(std::string_view name) const;
  const TensorInfo& require(std::string_view name) const;  // throws Error naming what is missing
  const SafetensorsFile& file_of(const TensorInfo& tensor) const { return files_[tensor.file]; }
  std::span<const SafetensorsFile> files() const { return files_; }
  std::string where(
      const TensorInfo& tensor) const;  // "model-00001.safetensors: name" for messages
  void read(const TensorInfo& tensor, uint64_t offset, std::span<uint8_t> out) const {
    files_[tensor.file].read(tensor, offset, out);
  }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  void add_file(SafetensorsFile file);  // takes over its tensors
  void finish();                        // sorts; no name twice
  void check_complete(const std::string& index_path, const ShardIndex& index) const;

  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  uint64_t total_bytes_ = 0;
};

}  // namespace moebius
