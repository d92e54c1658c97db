// SPDX-License-Identifier: Apache-2.0
#include "bench/bench_context.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"

namespace moebius {
namespace {

// Fills a block. Keys are words that, as bf16 or in pairs as f32, are numbers with magnitudes
// between 1/128 and 2, without a pattern, so that scores differ. A state is that of an empty
// sequence.
bool invent(const KvKind& kind, uint64_t& seed, std::span<uint8_t> bytes) {
  if (!kind.cuttable) {
    std::fill(bytes.begin(), bytes.end(), uint8_t{0});
    return true;
  }
  for (size_t i = 0; i + 2 <= bytes.size(); i += 2) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    const auto word = static_cast<uint16_t>(0x3c00 | ((seed >> 40) & 0x83ff));
    std::memcpy(bytes.data() + i, &word, 2);
  }
  return true;
}

}  // namespace

InventedContext::InventedContext(Backend& backend, size_t batch, size_t depth, size_t steps)
    : backend_(backend), tables_(batch), length_(depth) {
  const std::span<const KvKind> kinds = backend.kv_kinds();
  const size_t blocks = (depth + steps + kBlockTokens - 1) / kBlockTokens;
  uint64_t seed = 1;
  for (size_t k = 0; k < kinds.size(); ++k) {
    if (backend.stored_bytes(k) == 0)
      fail("a context cannot be invented: blocks of '{}' cannot be written here", kinds[k].name);
    // Tokens that are never read again have no blocks; of states only the last one exists.
    const size_t first = first_block_needed(kinds[k], depth), own = blocks - first;
    backend.commit_blocks(k, batch * own);
    for (size_t b = 0; b < batch; ++b) {
      std::vector<BlockId>& table = tables_[b].emplace_back(blocks, kNoBlock);
      for (size_t i = 0; i < own; ++i) {
        table[first + i] = static_cast<BlockId>(b * own + i);
        if ((first + i) * kBlockTokens < depth)
          backend.write_block(k, table[first + i], depth, [&](std::span<uint8_t> bytes) {
            return invent(kinds[k], seed, bytes);
          });
      }
    }
  }
}

InventedContext::~InventedContext() {
  try {
    for (size_t k = 0; k < backend_.kv_kinds().size(); ++k) backend_.trim_blocks(k, 0);
  } catch (...) {  // the memory is freed with the backend
  }
}

void InventedContext::step(std::span<const std::vector<int32_t>> tokens, StepOutput& out) {
  std::vector<BatchItem> items;
  for (size_t b = 0; b < tables_.size(); ++b)
    items.push_back({&tables_[b], length_, tokens[b], LogitsOf::kLast, 0, 0});
  backend_.collect(backend_.submit(items), out);
  ++length_;
}

}  // namespace moebius
