// SPDX-License-Identifier: Apache-2.0
// All tensors of a folder, from a single model.safetensors or from the shards of an index, merged
// and checked.
#pragma once
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"

namespace moebius {

class Gguf;
struct GgufNames;
struct ShardIndex;

// Targets that symbolic links in a model folder may have. kInside: files of the folder, or the hub
// cache's layout (snapshots/<revision>/name -> ../../blobs/<hash>). kAnywhere: any file, for a
// folder that the user named.
enum class Links : uint8_t { kInside, kAnywhere };

// Throws Error unless the folder has safetensors files of a model; the message names what the
// folder has instead.
void check_weight_files(const std::string& folder);

// Returns the path of a file in a model folder. Throws Error unless `name` is a plain file name and
// links are as allowed.
std::string file_in_folder(const std::string& folder, std::string_view name,
                           Links links = Links::kInside);

class TensorStore {
 public:
  TensorStore() = default;
  TensorStore(TensorStore&&) noexcept = default;  // addresses of tensors stay valid
  TensorStore& operator=(TensorStore&&) noexcept = default;
  // Opens all weight files. Appends warnings (a tensor is missing from the index, single file and
  // index are both present and differ, ...) to `warnings`. Ignores files called consolidated*,
  // adapter* or optimizer*. Throws Error.
  static TensorStore open_folder(const std::string& folder, std::vector<std::string>& warnings,
                                 Links links = Links::kInside);
  static TensorStore open_file(const std::string& path);
  // Returns the tensors of a GGUF model under Hugging Face's names; `names` says what they are.
  // Throws Error for a part that links do not allow.
  static TensorStore of_gguf(const Gguf& gguf, const GgufNames& names,
                             Links links = Links::kInside);
  // Returns a store of tensors in memory, which must outlive the store.
  static TensorStore from_memory(const std::string& name, std::span<const TensorData> tensors);
  // Returns a store with the same tensors that can also read `paths`; `tensors` receives the
  // tensors of those files.
  TensorStore with_files(std::span<const std::string> paths,
                         std::vector<TensorInfo>& tensors) const;
  std::span<const TensorInfo> tensors() const { return tensors_; }  // sorted by name
  const TensorInfo* find(std::string_view name) const;
  // Returns the tensor of this name. Throws Error if there is none.
  const TensorInfo& require(std::string_view name) const;
  const SafetensorsFile& file_of(const TensorInfo& tensor) const { return files_[tensor.file]; }
  std::span<const SafetensorsFile> files() const { return files_; }
  // Returns a tensor's file and name for messages: "model-00001.safetensors: name".
  std::string where(const TensorInfo& tensor) const;
  void read(const TensorInfo& tensor, uint64_t offset, std::span<uint8_t> out) const {
    files_[tensor.file].read(tensor, offset, out);
  }
  uint64_t total_bytes() const { return total_bytes_; }

 private:
  void add_file(SafetensorsFile file);  // adds the tensors of a file
  void finish();                        // sorts the tensors; throws Error if a name occurs twice
  void check_complete(const std::string& index_path, const ShardIndex& index) const;

  std::vector<SafetensorsFile> files_;
  std::vector<TensorInfo> tensors_;
  uint64_t total_bytes_ = 0;
};

}  // namespace moebius
