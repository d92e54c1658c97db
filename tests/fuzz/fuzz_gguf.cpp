// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the input as a GGUF file, and as the beginning of a longer one. Whatever is accepted
// must be what the reader promises: tensors inside the file, apart, sized as type and shape say.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "fuzz/target.h"
#include "gguf/gguf.h"

namespace moebius::fuzz_gguf {
namespace {

void require(bool condition) {
  if (!condition) std::abort();
}

void parse(std::string_view bytes, uint64_t file_size) {
  try {
    const auto header = parse_gguf_header(bytes, file_size, "fuzz.gguf");
    if (!header) {
      require(bytes.size() < file_size);
      return;
    }
    for (const GgufTensor& t : header->tensors) {
      uint64_t numbers = 1;
      for (const uint64_t d : t.shape) numbers *= d;
      require(numbers / t.type->numbers * t.type->bytes == t.bytes);
      require(t.offset >= header->data && t.offset <= file_size && t.bytes <= file_size - t.offset);
    }
    for (const auto& [key, value] : header->metadata.all()) try {
        (void)header->metadata.texts(key);
        (void)header->metadata.numbers(key);
        (void)header->metadata.count(key, 1000);
      } catch (const Error&) {
      }
  } catch (const Error& e) {
    require(std::string_view(e.what()).starts_with("fuzz.gguf: "));
  }
}

}  // namespace

FUZZ_TARGET(gguf) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  parse(bytes, size);
  parse(bytes, size + 1000);
  return 0;
}

}  // namespace moebius::fuzz_gguf
