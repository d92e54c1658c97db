// SPDX-License-Identifier: Apache-2.0
// Opens safetensors files and reads payloads from them. The header's length is checked against the
// file before memory is allocated for it; safetensors_header.cpp proves the rest.
#include "checkpoint/safetensors.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "base/error.h"
#include "base/numeric.h"

namespace moebius {

namespace {

// Reads the header, whose length is in the first eight bytes.
std::string read_header(const ReadFile& file) {
  const std::string& path = file.path();
  const uint64_t size = file.size();
  if (size < 8)
    fail("{}: file has {} bytes; a safetensors file begins with 8 bytes of header length",
         printable(path), size);
  check_no_lfs_pointer(file);
  std::array<uint8_t, 8> raw{};
  file.read_at(0, raw);
  uint64_t length = 0;
  for (size_t i = raw.size(); i-- > 0;) length = length << 8 | raw[i];
  if (length > kMaxHeaderBytes)
    fail("{}: header length is {}; at most {} bytes are allowed (is this a safetensors file?)",
         printable(path), length, kMaxHeaderBytes);
  if (length > size - 8)
    fail("{}: header length is {}, but the file has only {} bytes after it: it is incomplete",
         printable(path), length, size - 8);
  std::string header(length, '\0');
  file.read_at(8, {reinterpret_cast<uint8_t*>(header.data()), header.size()});
  return header;
}

// Undoes what the converter did to F32 numbers. Models have logarithms in BF16: the nearest one is
// taken if its exponential is the stored number, but for rounding.
void undo(NumberChange change, std::span<uint8_t> numbers) {
  for (size_t i = 0; i + sizeof(float) <= numbers.size(); i += sizeof(float)) {
    float v;
    std::memcpy(&v, numbers.data() + i, sizeof v);
    if (change == NumberChange::kPlusOne) {
      v -= 1;
    } else {
      const double e = std::fabs(v);
      const auto log = static_cast<float>(std::log(e));
      const float near = bf16_to_f32(f32_to_bf16(log));
      v = std::fabs(std::exp(double{near}) - e) <= 0x1p-22 * e ? near : log;
    }
    std::memcpy(numbers.data() + i, &v, sizeof v);
  }
}

}  // namespace

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result;
  placing_errors(at_file("file", path), [&] {
    result.file_ = std::make_shared<const ReadFile>(path);
    result.path_ = path;
    result.size_ = result.file_->size();
    result.tensors_ = parse_safetensors_header(read_header(*result.file_), result.size_, path);
  });
  return result;
}

SafetensorsFile SafetensorsFile::of_memory(std::string name, std::span<const TensorData> tensors) {
  SafetensorsFile result;
  result.path_ = std::move(name);
  for (const TensorData& t : tensors) {
    TensorInfo info{t.name, t.dtype, t.shape, reinterpret_cast<uintptr_t>(t.data.data()), 0, 0};
    info.bytes = bytes_of_shape(info, result.path_);
    info.gguf = t.gguf;
    if (info.bytes != t.data.size())
      fail_at({"argument", result.path_, t.name, "", ""},
              "{}: {} is {} and has {} bytes; expected {}", result.path_, printable(t.name),
              describe(info), t.data.size(), info.bytes);
    result.size_ += info.bytes;
    result.tensors_.push_back(std::move(info));
  }
  return result;
}

SafetensorsFile SafetensorsFile::of_file(std::shared_ptr<const ReadFile> file,
                                         std::vector<TensorInfo> tensors) {
  SafetensorsFile result;
  result.path_ = file->path();
  result.size_ = file->size();
  result.file_ = std::move(file);
  result.tensors_ = std::move(tensors);
  return result;
}

// Reads the stored rows that the wanted ones lie in, a stretch of the order at a time; alone where
// they lie far apart.
void SafetensorsFile::read_reordered(const TensorInfo& tensor, uint64_t offset,
                                     std::span<uint8_t> out) const {
  const uint64_t row_bytes = tensor.order.row_bytes != 0 ? tensor.order.row_bytes
                                                         : tensor.bytes / tensor.shape[0],
                 end = offset + out.size();
  std::vector<uint8_t> scratch;
  for (uint64_t row = offset / row_bytes; row * row_bytes < end;) {
    const uint64_t last =
        std::min(tensor.order.stretch_end(row), (end + row_bytes - 1) / row_bytes);
    uint64_t least = tensor.order.stored(row), most = least;
    for (uint64_t r = row; r < last; ++r) {
      least = std::min(least, tensor.order.stored(r));
      most = std::max(most, tensor.order.stored(r));
    }
    const bool together = most - least < 4 * (last - row);
    scratch.resize((together ? most - least + 1 : 1) * row_bytes);
    if (together) file_->read_at(tensor.offset + least * row_bytes, scratch);
    for (; row < last; ++row) {
      const uint64_t at = tensor.order.stored(row);
      if (!together) file_->read_at(tensor.offset + at * row_bytes, scratch);
      const uint8_t* stored = scratch.data() + (together ? at - least : 0) * row_bytes;
      const uint64_t from = std::max(row * row_bytes, offset),
                     to = std::min((row + 1) * row_bytes, end);
      std::copy(stored + (from - row * row_bytes), stored + (to - row * row_bytes),
                out.data() + (from - offset));
    }
  }
}

void SafetensorsFile::read(const TensorInfo& tensor, uint64_t offset,
                           std::span<uint8_t> out) const {
  if (offset > tensor.bytes || out.size() > tensor.bytes - offset)
    fail("{}: cannot read {} bytes at {} of tensor '{}', which has {}", printable(path()),
         out.size(), offset, printable(tensor.name), tensor.bytes);
  if (tensor.source != nullptr)
    tensor.source->read(offset, out);
  else if (file_ == nullptr)  // without a file, offsets are addresses in memory
    std::memcpy(out.data(), reinterpret_cast<const uint8_t*>(tensor.offset) + offset, out.size());
  else
    placing_errors(at_file("file", path_, tensor.name), [&] {
      if (tensor.order)
        read_reordered(tensor, offset, out);
      else
        file_->read_at(tensor.offset + offset, out);
      if (tensor.change != NumberChange::kNone) undo(tensor.change, out);
    });
}

}  // namespace moebius
