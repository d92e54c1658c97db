// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the input as a safetensors file, as a bare header with a free file size, and as a
// shard index. Whatever is accepted must be what the reader promises: tensors in order, without
// holes, inside the file, sized as dtype and shape say.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"
#include "fuzz/target.h"

namespace moebius::fuzz_safetensors {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void parse(std::string_view header, uint64_t file_size) {
  try {
    const std::vector<TensorInfo> tensors =
        parse_safetensors_header(header, file_size, "fuzz.safetensors");
    uint64_t next = 8 + header.size();
    for (const TensorInfo& t : tensors) {
      require(t.offset == next && t.bytes <= file_size - next);
      uint64_t bits = bits_of(t.dtype);
      for (const uint64_t d : t.shape) bits *= d;
      require(bits / 8 == t.bytes && !describe(t).empty());
      next += t.bytes;
    }
    require(next == file_size);
  } catch (const Error& e) {
    require(std::string_view(e.what()).starts_with("fuzz.safetensors: "));
  }
}

}  // namespace

FUZZ_TARGET(safetensors) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const ShardIndex index = parse_shard_index(text, "fuzz.json");
    for (const auto& [name, file] : index.file_of)
      require(is_plain_file_name(index.files.at(file)));
  } catch (const Error&) {
  }
  if (size < 8) return 0;
  uint64_t length = 0;
  for (size_t i = 8; i-- > 0;) length = length << 8 | data[i];
  if (length <= size - 8) parse(text.substr(8, length), size);
  parse(text.substr(8), length);
  return 0;
}

}  // namespace moebius::fuzz_safetensors
