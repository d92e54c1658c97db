// SPDX-License-Identifier: Apache-2.0
// Hands out the numbers of KV blocks and counts their owners and bytes. The memory behind the
// numbers is the backend's. One budget in bytes covers all kinds; the lowest free number is taken
// first, so that the memory of a kind stays together. Not thread-safe.
//
// A block has owners: running sequences, and the cache (at most once). A block that only the cache
// owns can be evicted; the prefix tree decides which one.
#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "model/backend.h"

namespace moebius {

class KvBlocks {
 public:
  using Freed = std::function<void(size_t kind, BlockId id)>;
  // `freed` is called for each block that lost its last owner; it must not throw.
  KvBlocks(std::span<const KvKind> kinds, uint64_t budget, Freed freed = {});

  size_t kinds() const noexcept { return kinds_.size(); }
  const KvKind& kind(size_t k) const noexcept { return kinds_[k].facts; }

  // Returns a new block with one owner, or kNoBlock if the budget has no room for it.
  BlockId take(size_t kind);
  void hold(size_t kind, BlockId id) noexcept;  // adds an owner
  void drop(size_t kind, BlockId id) noexcept;  // removes an owner; a block without owners is free
  // Add and remove the cache as an owner.
  void cache(size_t kind, BlockId id) noexcept;
  void uncache(size_t kind, BlockId id) noexcept;
  // Returns true if only the cache owns the block.
  bool evictable(size_t kind, BlockId id) const noexcept {
    const Block& b = kinds_[kind].blocks[id];
    return b.cached && b.owners == 1;
  }

  uint64_t budget() const noexcept { return budget_; }
  uint64_t used_bytes() const noexcept { return used_; }  // bytes of blocks that have an owner
  uint64_t evictable_bytes() const noexcept { return evictable_; }
  uint64_t free_bytes() const noexcept { return budget_ - used_; }
  size_t used(size_t kind) const noexcept { return kinds_[kind].used; }
  size_t evictable_blocks(size_t kind) const noexcept { return kinds_[kind].evictable; }

  // Returns one more than the highest number given out (without free numbers that forget_free()
  // dropped): so many blocks of a kind may have memory.
  size_t numbers(size_t kind) const noexcept { return kinds_[kind].blocks.size(); }
  uint64_t number_bytes() const noexcept;
  // Drops free numbers above the highest owned one, and returns how many numbers are left.
  size_t forget_free(size_t kind) noexcept;

 private:
  struct Block {
    uint32_t owners = 0;
    bool cached = false;
  };
  struct Kind {
    KvKind facts;
    std::vector<Block> blocks;
    // Heap of free numbers with the lowest first; reserved for every number, so that freeing cannot
    // throw.
    std::vector<BlockId> free;
    size_t used = 0, evictable = 0;
  };
  void count_evictable(Kind& kind, int blocks) noexcept;
  std::vector<Kind> kinds_;
  uint64_t budget_, used_ = 0, evictable_ = 0;
  Freed freed_;
};

// Owns blocks for a scope; block i is of kind i % kinds, or kNoBlock.
struct ScopedBlocks {
  ~ScopedBlocks() {
    for (size_t i = 0; i < ids.size(); ++i)
      if (ids[i] != kNoBlock) blocks.drop(i % blocks.kinds(), ids[i]);
  }
  KvBlocks& blocks;
  std::vector<BlockId> ids;
};

}  // namespace moebius
