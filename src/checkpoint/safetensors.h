// SPDX-License-Identifier: Apache-2.0
// One safetensors file: the header is parsed and proven at open (no holes, no overlaps, exact
// length); payloads are read on request with positioned reads into the caller's buffer. No mapping:
// a file that shrinks gives an error, not a signal.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/file.h"

namespace moebius {

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // of the first byte in the file
  uint64_t bytes = 0;
  uint32_t file = 0;  // index into TensorStore::files()
};
std::string describe(const TensorInfo& tensor);  // "I32[4096,512]"
// That its type and shape ask for; throws Error where that is no number of whole bytes.
uint64_t bytes_of_shape(const TensorInfo& tensor, const std::string& path);

// A tensor in memory.
struct TensorData {
  std::string name;
  DType dtype;
  std::vector<uint64_t> shape;
  std::span<const uint8_t> data;
};

class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::string& path);  // throws Error
  // Tensors that lie in memory, which must outlive this; `name` stands for the path in messages.
  static SafetensorsFile of_memory(std::string name, std::span<const TensorData> tensors);
  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  // For reading on when the store is gone; null: tensors lie in memory.
  std::shared_ptr<const ReadFile> file() const { return file_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in file order
  std::vector<TensorInfo> take_tensors() { return std::move(tensors_); }
  void set_tensors(std::vector<TensorInfo> tensors) {
    tensors_ = std::move(tensors);
  }  // a selection of those taken
  // Reads out.size() bytes at `offset` inside the tensor. Throws Error if the file got shorter or
  // cannot be read. Thread-safe.
  void read(const TensorInfo& tensor, uint64_t offset, std::span<uint8_t> out) const;

 private:
  std::shared_ptr<const ReadFile> file_;  // null: in memory, TensorInfo::offset is an address
  std::string path_;
  uint64_t size_ = 0;
  std::vector<TensorInfo> tensors_;
};

// Limits of our own on top of the format's 100,000,000 header bytes: a header must not cost more
// memory than it is worth.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensors = 1'000'000, kMaxTensorName = 1024, kMaxRank = 64;

// Parses header bytes alone (what the fuzzer drives). `file_size` is the length of the whole file.
std::vector<TensorInfo> parse_safetensors_header(std::string_view header, uint64_t file_size,
                                                 const std::string& path);

// The first bytes of a file that holds `tensors` one after another, in this order (their `bytes`
// count, offsets do not): length, header, spaces up to a multiple of 8. `metadata`: the members of
// __metadata__, as JSON text without braces; "" : none.
std::string safetensors_header(std::span<const TensorInfo> tensors, std::string_view metadata = "");

// Writes tensors to a file that a user named (write_output of base/file.h), in the order and with the
// padding of the format's own writer. Data must match dtype and shape; names must be different.
void write_safetensors(const std::string& path, std::span<const TensorData> tensors);

}  // namespace moebius
