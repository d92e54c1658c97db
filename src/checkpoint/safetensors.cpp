// SPDX-License-Identifier: Apache-2.0
// Opening a safetensors file and reading payloads from it. The header's length is checked against
// the file before memory is taken for it; safetensors_header.cpp proves the rest.
#include "checkpoint/safetensors.h"

#include <array>

#include "base/error.h"

namespace moebius {

SafetensorsFile SafetensorsFile::open(const std::string& path) {
  SafetensorsFile result;
  result.file_ = std::make_shared<const ReadFile>(path);
  const uint64_t size = result.size();
  if (size < 8)
    fail("{}: file has {} bytes; a safetensors file begins with 8 bytes of header length",
         printable(path), size);
  std::array<uint8_t, 8> raw{};
  result.file_->read_at(0, raw);
  uint64_t length = 0;
  for (size_t i = raw.size(); i-- > 0;) length = length << 8 | raw[i];
  if (length > kMaxHeaderBytes)
    fail("{}: header length is {}; at most {} bytes are allowed (is this a safetensors file?)",
         printable(path), length, kMaxHeaderBytes);
  if (length > size - 8)
    fail("{}: header length is {}, but the file has only {} bytes after it: it is incomplete",
         printable(path), length, size - 8);
  std::string header(length, '\0');
  result.file_->read_at(8, {reinterpret_cast<uint8_t*>(header.data()), header.size()});
  result.tensors_ = parse_safetensors_header(header, size, path);
  return result;
}

void SafetensorsFile::read(const TensorInfo& tensor, uint64_t offset,
                           std::span<uint8_t> out) const {
  if (offset > tensor.bytes || out.size() > tensor.bytes - offset)
    fail("{}: cannot read {} bytes at {} of tensor '{}', which has {}", printable(path()),
         out.size(), offset, printable(tensor.name), tensor.bytes);
  file_->read_at(tensor.offset + offset, out);
}

}  // namespace moebius
