// SPDX-License-Identifier: Apache-2.0
// Reads the container of GGUF, the model files of llama.cpp: metadata and the list of tensors of
// one file or of all parts of a split one. Payloads are read later, at positions; nothing is
// mapped. Every count and length is checked against the file before memory is taken for it.
#pragma once
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/file.h"

namespace moebius {

// A type of tensors: blocks of `numbers` numbers in `bytes` bytes.
struct GgufType {
  uint32_t id;  // the type's number in files
  std::string_view name;
  uint32_t numbers, bytes;
};
// Returns the type with this number; null unless it can be read.
const GgufType* find_gguf_type(uint32_t id);

struct GgufTensor {
  std::string name;
  const GgufType* type = nullptr;
  std::vector<uint64_t> shape;  // slowest dimension first, as in safetensors
  uint64_t offset = 0;          // the first byte within the file
  uint64_t bytes = 0;
  uint32_t part = 0;  // index into Gguf::files()
};

// Types of metadata values, as files number them.
enum class GgufKind : uint32_t {
  kU8,
  kI8,
  kU16,
  kI16,
  kU32,
  kI32,
  kF32,
  kBool,
  kString,
  kArray,
  kU64,
  kI64,
  kF64,
  kCount
};

// A value of the metadata: a scalar, or the elements of an array, still in the file's bytes.
struct GgufValue {
  GgufKind kind = GgufKind::kCount;  // of the scalar, or of the elements
  bool array = false;
  uint64_t count = 1;      // number of elements
  std::string_view bytes;  // the elements; strings with their lengths
};

// Metadata by key. Accessors return nothing where the key is missing, accept every type of integer
// where an integer is meant and every type of number where a number is, and throw an Error that
// names file, key, found and expected otherwise.
class GgufMetadata {
 public:
  const std::string& path() const { return path_; }
  std::span<const std::pair<std::string_view, GgufValue>> all() const { return values_; }
  const GgufValue* find(std::string_view key) const;
  std::optional<uint64_t> count(std::string_view key, uint64_t most) const;
  std::optional<double> number(std::string_view key) const;  // finite
  std::optional<bool> flag(std::string_view key) const;
  std::optional<std::string_view> text(std::string_view key) const;
  // Elements of an array; a scalar is an array of one.
  std::optional<std::vector<int64_t>> integers(std::string_view key) const;
  std::optional<std::vector<double>> numbers(std::string_view key) const;
  std::optional<std::vector<std::string_view>> texts(std::string_view key) const;
  // Throws Error "FILE: KEY is <found>; expected <expected>".
  [[noreturn]] void refuse(std::string_view key, std::string_view expected) const;

 private:
  friend class GgufParser;
  template <class T>
  std::optional<std::vector<T>> list(
      std::string_view key, std::string_view expected,
      const std::function<std::optional<T>(const GgufValue&, uint64_t)>& element) const;
  std::string path_;
  std::vector<std::pair<std::string_view, GgufValue>> values_;  // in the order of the file
  std::unordered_map<std::string_view, size_t> by_key_;
};

// Limits in addition to what the file's size permits.
inline constexpr uint64_t kMaxGgufKeys = 65'536, kMaxGgufTensors = 1'000'000;
inline constexpr uint64_t kMaxGgufMetadata = 512u << 20, kMaxGgufText = 16u << 20;
inline constexpr uint64_t kMaxGgufElements = 16'777'216, kMaxGgufDimensions = 4;

// The part of a file in front of its data section.
struct GgufHeader {
  uint32_t version = 0;
  uint64_t alignment = 32;
  uint64_t data = 0;      // position of the data section
  GgufMetadata metadata;  // views the bytes that were parsed
  std::vector<GgufTensor> tensors;
};

// Parses the first bytes of a file of `file_size` bytes. Returns nothing if the header goes on
// behind `bytes` (and `bytes` is not the whole file). Throws Error for a header that breaks a rule
// of the format. The fuzzer calls this function.
std::optional<GgufHeader> parse_gguf_header(std::string_view bytes, uint64_t file_size,
                                            const std::string& path);

// Holds the name of a part of a split model, "NAME-00002-of-00005.gguf", in its pieces.
struct GgufPart {
  uint64_t number = 0, parts = 0;
};
inline constexpr std::string_view kGgufPartEnd = "-00000-of-00000.gguf";
std::optional<GgufPart> gguf_part_of(std::string_view path);

// A model in GGUF: one file, or all parts of a split one.
class Gguf {
 public:
  // Opens a file and, if it is a part of a split model, all other parts. Throws Error.
  static Gguf open(const std::string& path);
  const std::string& path() const { return files_.front()->path(); }
  uint32_t version() const { return header_.version; }
  const GgufMetadata& metadata() const { return header_.metadata; }
  const std::vector<GgufTensor>& tensors() const { return header_.tensors; }
  const GgufTensor* find(std::string_view name) const;
  std::span<const std::shared_ptr<const ReadFile>> files() const { return files_; }

 private:
  void add_part(const std::string& path, uint64_t number, uint64_t parts);
  GgufHeader header_;                                // metadata of the first part, tensors of all
  std::vector<std::unique_ptr<std::string>> bytes_;  // of the headers
  std::vector<std::shared_ptr<const ReadFile>> files_;
  std::unordered_map<std::string_view, size_t> by_name_;
};

}  // namespace moebius
