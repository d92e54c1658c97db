// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "device/kv.h"

namespace moebius {

// Records how far the prefix of a waiting sequence is read from disk. Made by KvArchive::plan.
struct KvRestore {
  bool planned = false, failed = false;
  std::vector<std::string> keys;  // keys of the root and of each block, as far as they are computed
  size_t blocks = 0;  // whole blocks that the sequence will have, including those in memory
  size_t next = 0;    // blocks that were read or skipped
  size_t tail = 0;    // least number of tokens that the unfinished block has; 0: there is none
  size_t begin = 0;   // tokens that memory already has
  size_t files = 0;
  uint64_t bytes = 0;  // bytes that are still to be read
  bool done() const { return failed || (next == blocks && tail == 0); }
  size_t end() const { return blocks * kBlockTokens + tail; }
};

}  // namespace moebius
