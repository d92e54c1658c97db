// SPDX-License-Identifier: Apache-2.0
// Files of packed weights: any bytes are an index whose blocks lie where they may, or an Error; what was
// understood is written the same again.
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "device/cpu/pack_file.h"
#include "fuzz/target.h"

namespace moebius::fuzz_pack_file {

FUZZ_TARGET(pack_file) {
  constexpr uint64_t kEnd = uint64_t{1} << 30;
  try {
    const PackIndex index = parse_pack_index({data, size}, kEnd, "file");
    for (const auto& [key, e] : index.entries)
      if (e.offset < kPackHeaderBytes || e.offset > kEnd || e.bytes > kEnd - e.offset) std::abort();
    const std::string text = pack_index(index);
    const PackIndex again = parse_pack_index(
        {reinterpret_cast<const uint8_t*>(text.data()), text.size()}, kEnd, "file");
    if (pack_index(again) != text) std::abort();
  } catch (const Error&) {
  }
  try {
    const PackHeader h = parse_pack_header({data, size}, size, "file");
    if (h.index_offset + h.index_bytes != size) std::abort();
  } catch (const Error&) {
  }
  return 0;
}

}  // namespace moebius::fuzz_pack_file
