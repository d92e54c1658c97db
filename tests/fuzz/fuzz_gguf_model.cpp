// SPDX-License-Identifier: Apache-2.0
// Fuzz target: the input as the header of a GGUF file whose data are zeros. Metadata become a
// configuration and tensors get names, or throw Error; every named part lies inside its tensor.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/error.h"
#include "fuzz/target.h"
#include "gguf/config.h"
#include "gguf/gguf.h"
#include "gguf/names.h"

namespace moebius::fuzz_gguf_model {
namespace {

constexpr off_t kData = 1 << 20;  // bytes of zeros behind the header

void require(bool condition) {
  if (!condition) std::abort();
}

}  // namespace

FUZZ_TARGET(gguf_model) {
  static const int file = ::memfd_create("fuzz.gguf", 0);
  require(::ftruncate(file, 0) == 0);
  require(::pwrite(file, data, size, 0) == static_cast<ssize_t>(size));
  require(::ftruncate(file, static_cast<off_t>(size) + kData) == 0);
  try {
    const Gguf gguf = Gguf::open("/proc/self/fd/" + std::to_string(file));
    std::vector<std::string> warnings;
    const Json config = gguf_config(gguf, warnings);
    const GgufNames names = name_tensors(gguf, config);
    for (const GgufPiece& piece : names.pieces)
      require(!piece.name.empty() && piece.offset <= piece.tensor->bytes &&
              piece.bytes <= piece.tensor->bytes - piece.offset);
  } catch (const Error& e) {
    require(*e.what() != '\0');
  }
  return 0;
}

}  // namespace moebius::fuzz_gguf_model
