// SPDX-License-Identifier: Apache-2.0
// Counters of a prompt cache on disk (KvDisk), since the start unless noted.
#pragma once
#include <cstdint>

namespace moebius {

struct KvDiskFigures {
  // Number and bytes of files in the folder now, as far as this process knows.
  uint64_t files = 0, bytes = 0;
  uint64_t read_files = 0, read_bytes = 0, written_files = 0, written_bytes = 0;
  uint64_t dropped = 0;  // files not written because the disk was behind, full, or failed
  uint64_t evicted = 0;  // files removed to make room for others
  uint64_t damaged = 0;  // files found damaged, and removed
};

}  // namespace moebius
