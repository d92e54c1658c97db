// SPDX-License-Identifier: Apache-2.0
// Blocks of keys and values on disk: any bytes are one or none; one that is read gives the same again
// when it is written. The checksum is made right for half of the inputs, so that what lies behind it is
// reached.
#include <cstdlib>

#include "base/checksum.h"
#include "engine/kv_file.h"
#include "fuzz/target.h"

namespace moebius::fuzz_kv_file {

FUZZ_TARGET(kv_file) {
  std::vector<uint8_t> bytes(data, data + size);
  const size_t tokens = size > 28 ? data[28] : 0;  // seal where its end is within
  if (size >= kv_file_block_at(kMostFileTokens) && tokens <= kMostFileTokens && data[29] == 0 &&
      data[30] == 0 && data[31] == 0 && data[8] % 2 == 0)
    seal_kv_file(bytes);
  KvFile file;
  if (!read_kv_file_head(bytes, bytes.size(), file).empty() ||
      checksum(std::span(bytes).last(file.block_bytes)) != file.block_sum)
    return 0;
  std::vector<uint8_t> again = bytes;
  write_kv_file_head(file, again);
  seal_kv_file(again);
  if (again != bytes) std::abort();
  return 0;
}

}  // namespace moebius::fuzz_kv_file
