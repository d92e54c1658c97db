// SPDX-License-Identifier: Apache-2.0
// Whether ranks have the memory for their weights, judged before anything is read.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/cpu/layer_plan.h"
#include "model/decoder.h"
#include "model/ranks.h"
#include "runtime/memory_limits.h"

namespace moebius {

// Beside packed weights a rank needs this much: rows, buffers, experts that are just being read.
inline constexpr uint64_t kWorkingMemory = uint64_t{16} << 20;

struct RankMemory {
  std::string host;
  uint64_t weights = 0;             // bytes, packed
  std::vector<MemoryLimit> limits;  // of its process; ranks of a host share those of one name
};

// Bytes of weights on every rank, as the kernels of this CPU hold them.
std::vector<uint64_t> packed_bytes_of_ranks(const Checkpoint& checkpoint, const RankSplit& split,
                                            const ModelOptions& options);

// Weights that are mapped from a file (--pack-dir) need not all be in memory: of each limit they count
// for three quarters at most.
void let_weights_go(std::span<RankMemory> ranks);

// Why they do not fit, in one sentence that names ranks, host, limit and the bytes missing; empty
// when they do.
std::string memory_refusal(std::span<const RankMemory> ranks);

// What every rank can have beside weights and working memory; 0 when nothing is known.
uint64_t memory_left(std::span<const RankMemory> ranks);

}  // namespace moebius
