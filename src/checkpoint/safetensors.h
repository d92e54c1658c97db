// SPDX-License-Identifier: Apache-2.0
// Reads one safetensors file: the header is parsed and checked at open (no holes, no overlaps,
// exact length); payloads are read at positions into the caller's buffer. Nothing is mapped: a file
// that shrinks gives an Error, not a signal.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"
#include "base/file.h"
#include "gguf/row_order.h"

namespace moebius {

// Returns what places errors at a file, for placing_errors() of base/error.h; the arguments must
// outlive it.
inline auto at_file(std::string_view kind, const std::string& path, std::string_view tensor = "") {
  return [=, &path] { return ErrorPlace{std::string(kind), path, std::string(tensor), "", ""}; };
}

struct GgufType;

// The numbers of a tensor that no file has as they are.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  virtual void read(uint64_t offset, std::span<uint8_t> out) const = 0;  // thread-safe
};

struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<uint64_t> shape;
  uint64_t offset = 0;  // offset of the tensor's first byte within the file
  uint64_t bytes = 0;
  uint32_t file = 0;  // index into TensorStore::files()
  // Not null: the rows are blocks of this type (gguf/gguf.h), dtype is U8 and columns are bytes.
  const GgufType* gguf = nullptr;
  RowOrder order{};  // of the file; read() undoes it: callers see rows in Hugging Face's order
  // Place of a stored column, in numbers, where blocks are wider than the stretches that change
  // places; the format's reader undoes it.
  RowOrder columns{};
  NumberChange change = NumberChange::kNone;     // read() undoes it
  std::shared_ptr<const TensorSource> source{};  // read in place of the file
};
std::string describe_shape(std::span<const uint64_t> shape);  // "[4096,512]"
std::string describe(const TensorInfo& tensor);  // returns text such as "I32[4096,512]"
// Returns the bytes that type and shape imply. Throws Error if that is not a whole number.
uint64_t bytes_of_shape(const TensorInfo& tensor, const std::string& path);

// A tensor in memory of the caller, who keeps it alive while it is used.
struct TensorData {
  std::string name;
  DType dtype;
  std::vector<uint64_t> shape;
  std::span<const uint8_t> data;
  const GgufType* gguf = nullptr;  // as in TensorInfo
};

class SafetensorsFile {
 public:
  // Opens a file and parses its header; throws Error.
  static SafetensorsFile open(const std::string& path);
  // Returns an object that reads tensors in memory, which must outlive it, as if they were in a
  // file; `name` replaces the path in messages.
  static SafetensorsFile of_memory(std::string name, std::span<const TensorData> tensors);
  // Returns an object that reads tensors of a file that is open already, of any format.
  static SafetensorsFile of_file(std::shared_ptr<const ReadFile> file,
                                 std::vector<TensorInfo> tensors);
  const std::string& path() const { return path_; }
  uint64_t size() const { return size_; }
  // Returns the open file, for reading after the store is gone; null if tensors are in memory.
  std::shared_ptr<const ReadFile> file() const { return file_; }
  // Tensors in the order of the file.
  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  std::vector<TensorInfo> take_tensors() { return std::move(tensors_); }
  void set_tensors(std::vector<TensorInfo> tensors) {
    tensors_ = std::move(tensors);
  }  // replaces the list of tensors by a selection of it
  // Reads out.size() bytes at `offset` inside the tensor. Throws Error if the file got shorter or
  // cannot be read. Thread-safe.
  void read(const TensorInfo& tensor, uint64_t offset, std::span<uint8_t> out) const;

 private:
  void read_reordered(const TensorInfo& tensor, uint64_t offset, std::span<uint8_t> out) const;
  // The open file; null: tensors are in memory, and TensorInfo::offset is an address.
  std::shared_ptr<const ReadFile> file_;
  std::string path_;
  uint64_t size_ = 0;
  std::vector<TensorInfo> tensors_;
};

// Limits on a header, in addition to the format's own of 100,000,000 bytes, so that a header cannot
// take much more memory than its size.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;
inline constexpr size_t kMaxTensors = 1'000'000, kMaxTensorName = 1024, kMaxRank = 64;

// Parses the bytes of a header; `file_size` is the length of the whole file. Throws Error for a
// header that breaks a rule of the format. The fuzzer calls this function.
std::vector<TensorInfo> parse_safetensors_header(std::string_view header, uint64_t file_size,
                                                 const std::string& path);

// Returns the first bytes of a file that holds `tensors` one after another: length, header, spaces
// up to a multiple of 8. Reads their `bytes`, not their offsets. `metadata`: the members of
// __metadata__ as JSON text without braces; "": none.
std::string safetensors_header(std::span<const TensorInfo> tensors, std::string_view metadata = "");

// Writes tensors to a file that a user named (write_output of base/file.h), in the order and with
// the padding of the format's own writer. Data must match dtype and shape; names must be different.
void write_safetensors(const std::string& path, std::span<const TensorData> tensors);

}  // namespace moebius
