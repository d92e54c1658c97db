// SPDX-License-Identifier: Apache-2.0
// Collects the addresses of KV blocks, for operations of the CPU that read or write them.
#pragma once
#include <algorithm>
#include <vector>

#include "device/cpu/cpu_device.h"

namespace moebius {

// Holds the addresses of one layer's part of every block that the sequences of a step read or
// write; null for other blocks.
struct BlockAddresses {
  std::vector<uint8_t*> blocks;
  std::vector<size_t> first;  // [sequences] index of each sequence's first block
  uint8_t* const* of(size_t sequence) const { return blocks.data() + first[sequence]; }

  void gather(const Step& step, const Device& device, const KvOffset& place) {
    blocks.clear(), first.clear();
    for (const StepSequence& s : step.sequences) {
      first.push_back(blocks.size());
      const auto& memory = static_cast<const CpuBlocks&>(s.pool->on(device));
      const std::vector<BlockId>& table = (*s.tables)[place.kind];
      const size_t count = (s.position + s.tokens - 1) / kBlockTokens + 1;
      for (size_t i = 0; i < count; ++i)
        blocks.push_back(table[i] == kNoBlock ? nullptr
                                              : memory.block(place.kind, table[i]) + place.offset);
    }
  }
};

// Calls f(block, first token in it, tokens, row of the step) for each block that receives new
// tokens of a sequence.
template <class F>
void each_block(const StepSequence& s, uint8_t* const* blocks, F f) {
  for (size_t t = 0; t < s.tokens;) {
    const size_t at = s.position + t, first = at % kBlockTokens,
                 count = std::min(kBlockTokens - first, s.tokens - t);
    f(blocks[at / kBlockTokens], first, count, s.first_row + t);
    t += count;
  }
}

// Writes a sequence's new rows to its blocks; `rows`: row 0 of the step.
inline void put_rows(const KvRowLayout& layout, const StepSequence& s, uint8_t* const* blocks,
                     const float* rows, size_t stride) {
  each_block(s, blocks, [&](uint8_t* block, size_t first, size_t count, size_t row) {
    for (size_t j = 0; j < count; ++j) layout.put(block, first + j, rows + (row + j) * stride);
  });
}

inline uint8_t* block_of(const KvPool& pool, const Device& device, const KvOffset& place,
                         BlockId id) {
  return static_cast<const CpuBlocks&>(pool.on(device)).block(place.kind, id) + place.offset;
}

}  // namespace moebius
