// SPDX-License-Identifier: Apache-2.0
// Numbers of KV blocks: who holds which, and how much of the budget that takes. The memory behind
// the numbers is the backend's. One budget in bytes covers all kinds; the lowest free number is
// taken first, so the memory of a kind stays together.
//
// A block has owners: running sequences, and the cache (at most once). A block that only the cache
// owns can be had by evicting it; who decides which is the prefix tree.
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
  // `freed` is told of every block that lost its last owner; it must not throw.
  KvBlocks(std::span<const KvKind> kinds, uint64_t budget, Freed freed = {});

  size_t kinds() const noexcept { return kinds_.size(); }
  const KvKind& kind(size_t k) const noexcept { return kinds_[k].facts; }

  // A block with one owner; kNoBlock where the budget has no room for it.
  BlockId take(size_t kind);
  void hold(size_t kind, BlockId id) noexcept;  // one owner more
  void drop(size_t kind, BlockId id) noexcept;  // one less; with the last one it is free
  // The same for the cache as an owner.
  void cache(size_t kind, BlockId id) noexcept;
  void uncache(size_t kind, BlockId id) noexcept;
  // Nobody but the cache owns it.
  bool evictable(size_t kind, BlockId id) const noexcept {
    const Block& b = kinds_[kind].blocks[id];
    return b.cached && b.owners == 1;
  }

  uint64_t budget() const noexcept { return budget_; }
  uint64_t used_bytes() const noexcept { return used_; }  // owned by anybody
  uint64_t evictable_bytes() const noexcept { return evictable_; }
  uint64_t free_bytes() const noexcept { return budget_ - used_; }
  size_t used(size_t kind) const noexcept { return kinds_[kind].used; }
  size_t evictable_blocks(size_t kind) const noexcept { return kinds_[kind].evictable; }

  // Numbers given out so far, with what was freed since: the memory that a kind may have.
  size_t numbers(size_t kind) const noexcept { return kinds_[kind].blocks.size(); }
  uint64_t number_bytes() const noexcept;
  // Forgets free numbers above the highest that is owned, and returns how many are left.
  size_t forget_free(size_t kind) noexcept;

 private:
  struct Block {
    uint32_t owners = 0;
    bool cached = false;
  };
  struct Kind {
    KvKind facts;
    std::vector<Block> blocks;
    std::vector<BlockId> free;  // a heap, lowest number first; has room for every number
    size_t used = 0, evictable = 0;
  };
  void count_evictable(Kind& kind, int blocks) noexcept;
  std::vector<Kind> kinds_;
  uint64_t budget_, used_ = 0, evictable_ = 0;
  Freed freed_;
};

}  // namespace moebius
