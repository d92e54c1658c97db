// SPDX-License-Identifier: Apache-2.0
// What a prompt cache on disk did and holds.
#pragma once
#include <cstdint>

namespace moebius {

struct KvDiskFigures {
  uint64_t files = 0, bytes = 0;  // in the folder, as far as known
  uint64_t read_files = 0, read_bytes = 0, written_files = 0, written_bytes = 0;
  uint64_t dropped = 0;  // not written: the disk was behind, full, or failed
  uint64_t evicted = 0;  // made room for others
  uint64_t damaged = 0;  // found and removed
};

}  // namespace moebius
