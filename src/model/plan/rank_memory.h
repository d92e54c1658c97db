// SPDX-License-Identifier: Apache-2.0
// Decides before anything is read whether ranks have the memory for their weights.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "runtime/memory_limits.h"

namespace moebius {

// Bytes that a rank needs beside packed weights: rows, buffers, and experts that are being read.
inline constexpr uint64_t kWorkingMemory = uint64_t{16} << 20;

struct RankMemory {
  std::string host;
  uint64_t weights = 0;  // bytes of packed weights
  // Limits of its process; ranks of a host share limits of equal name.
  std::vector<MemoryLimit> limits;
};

// Counts weights that are mapped from a file (--pack-dir), which need not all be in memory, for at
// most three quarters of each limit.
void let_weights_go(std::span<RankMemory> ranks);

// Returns why the weights do not fit, in one sentence that names ranks, host, limit and missing
// bytes; empty when they fit.
std::string memory_refusal(std::span<const RankMemory> ranks);

// Returns the bytes that every rank can have beside weights and working memory; 0: not known.
uint64_t memory_left(std::span<const RankMemory> ranks);

}  // namespace moebius
