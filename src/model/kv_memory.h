// SPDX-License-Identifier: Apache-2.0
// The memory behind block numbers: for every kind of layer some slabs of equal blocks. It grows when
// asked and keeps what it has, so a block's address never changes while it is in use.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "model/backend.h"
#include "runtime/memory.h"

namespace moebius {

class KvMemory {
 public:
  // Slabs have about so many bytes, and at least one block.
  KvMemory(std::span<const KvKind> kinds, size_t slab_bytes);

  uint8_t* block(size_t kind, BlockId id) const noexcept {
    const Kind& k = kinds_[kind];
    return k.slabs[id / k.slab_blocks].start + id % k.slab_blocks * k.block_bytes;
  }
  // Makes blocks [0, count) usable. Throws Error when the system has not that much memory; what was
  // usable stays so.
  void commit(size_t kind, size_t count);
  void trim(size_t kind, size_t count);  // gives whole slabs behind block `count` back
  size_t bytes() const;                  // of all slabs

 private:
  struct Slab {
    AlignedBuffer memory;
    uint8_t* start = nullptr;  // a const Slab still hands out memory to write
  };
  struct Kind {
    size_t block_bytes, slab_blocks;
    std::vector<Slab> slabs;
  };
  std::vector<Kind> kinds_;
};

}  // namespace moebius
