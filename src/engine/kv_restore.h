// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/kv.h"

namespace moebius {

// What a waiting sequence reads from disk before it runs.
struct KvRestore {
  bool planned = false, failed = false;
  std::vector<std::string> keys;  // of the root and every block, as far as known
  size_t blocks = 0;              // whole ones that there will be, in memory before or not
  size_t next = 0;                // blocks that were looked after
  size_t tail = 0;                // tokens of the unfinished block at least; 0: there is none
  size_t begin = 0;               // tokens that memory has
  size_t files = 0;
  uint64_t bytes = 0;  // that are left to read
  bool done() const { return failed || (next == blocks && tail == 0); }
  size_t end() const { return blocks * kBlockTokens + tail; }
};

}  // namespace moebius
