// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_blocks.h"

#include <algorithm>
#include <functional>

#include "base/error.h"

namespace moebius {

KvBlocks::KvBlocks(std::span<const KvKind> kinds, uint64_t budget, Freed freed)
    : budget_(budget), freed_(std::move(freed)) {
  if (kinds.empty()) fail("a model without kinds of layers has no keys and values to keep");
  for (const KvKind& k : kinds) {
    if (k.block_bytes == 0) fail("blocks of kind '{}' have 0 bytes", k.name);
    kinds_.push_back({k, {}, {}});
  }
}

BlockId KvBlocks::take(size_t kind) {
  Kind& k = kinds_[kind];
  if (k.facts.block_bytes > budget_ - used_) return kNoBlock;
  BlockId id = kNoBlock;
  if (k.free.empty()) {
    if (k.blocks.size() >= kNoBlock) return kNoBlock;
    if (k.free.capacity() <= k.blocks.size())  // room for all blocks, so that drop() cannot throw
      k.free.reserve(2 * k.blocks.size() + 8);
    id = static_cast<BlockId>(k.blocks.size());
    k.blocks.push_back({});
  } else {
    std::pop_heap(k.free.begin(), k.free.end(), std::greater<>());
    id = k.free.back();
    k.free.pop_back();
  }
  k.blocks[id] = {1, false};
  ++k.used;
  used_ += k.facts.block_bytes;
  return id;
}

void KvBlocks::count_evictable(Kind& kind, int blocks) noexcept {
  if (blocks > 0) {
    ++kind.evictable;
    evictable_ += kind.facts.block_bytes;
  } else {
    --kind.evictable;
    evictable_ -= kind.facts.block_bytes;
  }
}

void KvBlocks::hold(size_t kind, BlockId id) noexcept {
  Block& b = kinds_[kind].blocks[id];
  if (b.cached && b.owners == 1) count_evictable(kinds_[kind], -1);
  ++b.owners;
}

void KvBlocks::drop(size_t kind, BlockId id) noexcept {
  Kind& k = kinds_[kind];
  Block& b = k.blocks[id];
  if (--b.owners > 0) {
    if (b.cached && b.owners == 1) count_evictable(k, 1);
    return;
  }
  --k.used;
  used_ -= k.facts.block_bytes;
  k.free.push_back(id);
  std::push_heap(k.free.begin(), k.free.end(), std::greater<>());
  if (freed_) freed_(kind, id);
}

void KvBlocks::cache(size_t kind, BlockId id) noexcept {
  hold(kind, id);
  kinds_[kind].blocks[id].cached = true;
}

void KvBlocks::uncache(size_t kind, BlockId id) noexcept {
  Kind& k = kinds_[kind];
  Block& b = k.blocks[id];
  if (b.owners == 1) count_evictable(k, -1);
  b.cached = false;
  drop(kind, id);
}

uint64_t KvBlocks::number_bytes() const noexcept {
  uint64_t bytes = 0;
  for (const Kind& k : kinds_) bytes += k.blocks.size() * k.facts.block_bytes;
  return bytes;
}

size_t KvBlocks::forget_free(size_t kind) noexcept {
  Kind& k = kinds_[kind];
  size_t n = k.blocks.size();
  while (n > 0 && k.blocks[n - 1].owners == 0) --n;
  std::erase_if(k.free, [n](BlockId id) { return id >= n; });
  std::make_heap(k.free.begin(), k.free.end(), std::greater<>());
  k.blocks.resize(n);
  return n;
}

}  // namespace moebius
