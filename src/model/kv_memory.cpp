// SPDX-License-Identifier: Apache-2.0
#include "model/kv_memory.h"

#include <algorithm>

namespace moebius {

KvMemory::KvMemory(std::span<const KvKind> kinds, size_t slab_bytes) {
  for (const KvKind& k : kinds)
    kinds_.push_back(
        {k.block_bytes, std::max<size_t>(1, slab_bytes / std::max<size_t>(1, k.block_bytes)), {}});
}

void KvMemory::commit(size_t kind, size_t count) {
  Kind& k = kinds_[kind];
  while (k.slabs.size() * k.slab_blocks < count) {
    AlignedBuffer memory(k.slab_blocks * k.block_bytes);
    uint8_t* start = memory.data();
    k.slabs.push_back({std::move(memory), start});
  }
}

void KvMemory::trim(size_t kind, size_t count) {
  Kind& k = kinds_[kind];
  const size_t keep = (count + k.slab_blocks - 1) / k.slab_blocks;
  if (keep < k.slabs.size()) k.slabs.resize(keep);
}

size_t KvMemory::bytes() const {
  size_t bytes = 0;
  for (const Kind& k : kinds_)
    for (const Slab& s : k.slabs) bytes += s.memory.size();
  return bytes;
}

}  // namespace moebius
