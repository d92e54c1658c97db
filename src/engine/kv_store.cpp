// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_store.h"

#include <algorithm>
#include <utility>

#include "engine/kv_archive.h"

namespace moebius {
namespace {

constexpr size_t blocks_of(size_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

// Returns the blocks of a kind that a sequence holds; with a finite reach, those that the next
// token reads and the block to which it is written.
size_t kv_blocks_of(const KvKind& kind, size_t length) noexcept {
  const size_t all = blocks_of(length);
  return kind.reach == SIZE_MAX ? all : std::min(all, blocks_of(kind.reach) + 1);
}

uint64_t kv_bytes_of(std::span<const KvKind> kinds, size_t length) noexcept {
  uint64_t bytes = 0;
  for (const KvKind& k : kinds) bytes += kv_blocks_of(k, length) * k.block_bytes;
  return bytes;
}

KvStore::KvStore(Backend& backend, const KvOptions& options)
    : backend_(backend),
      blocks_(backend.kv_kinds(), options.budget, options.freed),
      tree_(blocks_, options.tails, options.hash_mask),
      pool_(options.pool),
      row_(blocks_.kinds(), kNoBlock) {
  for (size_t k = 0; k < blocks_.kinds(); ++k) row_bytes_ += blocks_.kind(k).block_bytes;
  if (options.disk == nullptr) return;
  archive_ = std::make_unique<KvArchive>(backend, blocks_, *options.disk, options.fingerprint);
  tree_.set_leaving([this](PrefixNode& node, size_t kind) { archive_->keep(node, kind); });
}

KvStore::~KvStore() = default;

uint64_t KvStore::bytes_until(const SequenceKv& kv, size_t length) const noexcept {
  uint64_t bytes = 0;
  const size_t all = blocks_of(length);
  const size_t more = all - std::min(all, kv.blocks());
  for (size_t k = 0; k < blocks_.kinds(); ++k)
    bytes += std::min(more, kv_blocks_of(blocks_.kind(k), length)) * blocks_.kind(k).block_bytes;
  return bytes;
}

BlockId KvStore::take(size_t kind, uint64_t keep) {
  const uint64_t bytes = blocks_.kind(kind).block_bytes;
  if (available() < bytes + keep) return kNoBlock;
  BlockId id = blocks_.take(kind);
  while (id == kNoBlock && tree_.evict()) id = blocks_.take(kind);
  return id;
}

// Adds one block of every kind, or none.
bool KvStore::add_row(SequenceKv& kv, uint64_t keep) {
  for (auto& table : kv.tables)
    if (table.size() == table.capacity()) table.reserve(2 * table.size() + 4);
  size_t taken = 0;
  const auto give_back = [&] {
    while (taken-- > 0) blocks_.drop(taken, row_[taken]);
  };
  try {
    for (; taken < blocks_.kinds(); ++taken) {
      row_[taken] = take(taken, keep);
      if (row_[taken] != kNoBlock) continue;
      give_back();
      return false;
    }
  } catch (...) {
    give_back();
    throw;
  }
  for (size_t k = 0; k < blocks_.kinds(); ++k) kv.tables[k].push_back(row_[k]);
  return true;
}

size_t KvStore::grow(SequenceKv& kv, size_t length, uint64_t keep) {
  while (kv.blocks() * kBlockTokens < length)
    if (!add_row(kv, keep)) break;
  return std::min(length, std::max(kv.length, kv.blocks() * kBlockTokens));
}

void KvStore::drop_entry(SequenceKv& kv, size_t kind, size_t block) noexcept {
  BlockId& id = kv.tables[kind][block];
  if (id != kNoBlock) blocks_.drop(kind, std::exchange(id, kNoBlock));
}

void KvStore::shrink(SequenceKv& kv) noexcept {
  for (size_t k = 0; k < kv.tables.size(); ++k)
    while (kv.tables[k].size() > blocks_of(kv.length)) {
      drop_entry(kv, k, kv.tables[k].size() - 1);
      kv.tables[k].pop_back();
    }
}

void KvStore::cut(SequenceKv& kv) {
  if (kv.length % kBlockTokens == 0) return;
  for (size_t k = 0; k < kv.tables.size(); ++k)
    backend_.cut_block(k, kv.tables[k][kv.length / kBlockTokens], kv.length % kBlockTokens);
}

void KvStore::hold_path(SequenceKv& kv, PrefixNode* node, size_t length) {
  for (size_t k = 0; k < blocks_.kinds(); ++k) {
    kv.tables[k].assign(node->depth, kNoBlock);
    kv.first[k] = std::min(node->depth, first_block_needed(blocks_.kind(k), length));
  }
  for (const PrefixNode* n = node; n->parent != nullptr; n = n->parent)
    for (size_t k = 0; k < blocks_.kinds(); ++k) {
      if (n->depth <= kv.first[k]) continue;
      blocks_.hold(k, n->blocks[k]);
      kv.tables[k][n->depth - 1] = n->blocks[k];
    }
  tree_.pin(node);
  kv.node = node;
  kv.length = node->depth * kBlockTokens;
}

// Makes a new last block with the first tokens of the blocks `from`, which stay meanwhile.
bool KvStore::copy_last(SequenceKv& kv, std::span<const BlockId> from, size_t tokens,
                        uint64_t keep) {
  const ScopedBlocks held{blocks_, {from.begin(), from.end()}};
  for (size_t k = 0; k < from.size(); ++k) blocks_.hold(k, from[k]);
  if (!add_row(kv, keep)) return false;
  for (size_t k = 0; k < from.size(); ++k)
    backend_.copy_block(k, from[k], kv.tables[k].back(), tokens);
  kv.length += tokens;
  return true;
}

void KvStore::attach(SequenceKv& kv, std::string_view salt, std::span<const int32_t> tokens,
                     size_t limit) {
  PrefixNode* root = tree_.root(salt);
  tree_.pin(root);
  try {
    while (true) {
      kv.tables.resize(blocks_.kinds());
      kv.first.assign(blocks_.kinds(), 0);
      const PrefixTree::Hit hit = tree_.find(root, tokens, limit);
      hold_path(kv, hit.node, hit.length);
      if (hit.cut == nullptr || copy_last(kv, hit.cut->blocks, hit.cut_tokens, 0)) break;
      clear(kv);  // no memory for the copy: only whole blocks remain
      limit = hit.node->depth * kBlockTokens;
    }
  } catch (...) {
    clear(kv);
    tree_.unpin(root);
    throw;
  }
  tree_.unpin(root);
}

void KvStore::release_passed(SequenceKv& kv) noexcept {
  for (size_t k = 0; k < blocks_.kinds(); ++k) {
    const size_t needed = std::min(first_block_needed(blocks_.kind(k), kv.length), kv.blocks());
    for (; kv.first[k] < needed; ++kv.first[k]) drop_entry(kv, k, kv.first[k]);
  }
}

void KvStore::advance(SequenceKv& kv, std::span<const int32_t> tokens, size_t length) noexcept {
  kv.length = length;
  try {
    while (kv.node->depth < length / kBlockTokens) {
      const size_t block = kv.node->depth;
      for (size_t k = 0; k < blocks_.kinds(); ++k) row_[k] = kv.tables[k][block];
      PrefixNode* node =
          tree_.insert(kv.node, tokens.subspan(block * kBlockTokens, kBlockTokens), row_);
      for (size_t k = 0; k < blocks_.kinds(); ++k) kv.tables[k][block] = row_[k];
      tree_.pin(node);
      tree_.unpin(std::exchange(kv.node, node));
    }
  } catch (const std::exception&) {
    // No memory for a node: the block is not cached for now; the next step tries again.
  }
  release_passed(kv);
}

bool KvStore::fork(const SequenceKv& from, SequenceKv& to, uint64_t keep) {
  const size_t tail = from.length % kBlockTokens, whole = from.length / kBlockTokens;
  to.tables.resize(blocks_.kinds());
  for (size_t k = 0; k < blocks_.kinds(); ++k) to.tables[k].reserve(whole + 4);
  to.first = from.first;
  std::vector<BlockId> last;
  if (tail != 0)
    for (size_t k = 0; k < blocks_.kinds(); ++k) last.push_back(from.tables[k][whole]);
  for (size_t k = 0; k < blocks_.kinds(); ++k)
    for (size_t b = 0; b < whole; ++b) {
      to.tables[k].push_back(from.tables[k][b]);
      if (from.tables[k][b] != kNoBlock) blocks_.hold(k, from.tables[k][b]);
    }
  to.node = from.node;
  tree_.pin(to.node);
  to.length = whole * kBlockTokens;
  try {
    if (tail == 0 || copy_last(to, last, tail, keep)) return true;
  } catch (...) {
    clear(to);
    throw;
  }
  clear(to);
  return false;
}

void KvStore::end(SequenceKv& kv, std::span<const int32_t> tokens) noexcept {
  if (kv.empty()) return;
  shrink(kv);
  const size_t whole = kv.length / kBlockTokens, tail = kv.length % kBlockTokens;
  if (tail != 0 && kv.node->depth == whole) {
    for (size_t k = 0; k < blocks_.kinds(); ++k) row_[k] = kv.tables[k][whole];
    try {
      tree_.insert_tail(kv.node, tokens.subspan(whole * kBlockTokens, tail), row_);
    } catch (const std::exception&) {
      // No memory to remember the block: the next turn computes it again.
    }
  }
  clear(kv);
}

void KvStore::clear(SequenceKv& kv) noexcept {
  for (size_t k = 0; k < kv.tables.size(); ++k)
    for (size_t b = kv.tables[k].size(); b-- > 0;) drop_entry(kv, k, b);
  if (kv.node != nullptr) tree_.unpin(kv.node);
  kv = {};
}

KvFigures KvStore::figures() const noexcept {
  KvFigures out;
  out.budget = blocks_.budget();
  out.cached = blocks_.evictable_bytes();
  out.used = blocks_.used_bytes() - out.cached;
  for (size_t k = 0; k < blocks_.kinds(); ++k) {
    out.blocks_cached += blocks_.evictable_blocks(k);
    out.blocks_used += blocks_.used(k) - blocks_.evictable_blocks(k);
  }
  out.blocks_free = static_cast<size_t>(blocks_.free_bytes() / row_bytes_) * blocks_.kinds();
  out.tails = tree_.tails();
  return out;
}

BlockTables KvStore::scratch() {
  SequenceKv kv;
  kv.tables.resize(blocks_.kinds());
  if (!add_row(kv, 0)) return {};
  return std::move(kv.tables);
}

void KvStore::give_back(BlockTables& tables) noexcept {
  for (size_t k = 0; k < tables.size(); ++k)
    for (const BlockId id : tables[k]) blocks_.drop(k, id);
  tables.clear();
}

void KvStore::tidy() {
  if (blocks_.number_bytes() <= blocks_.budget()) return;
  for (size_t k = 0; k < blocks_.kinds(); ++k) backend_.trim_blocks(k, blocks_.forget_free(k));
}

void KvStore::commit(size_t length) {
  const uint64_t all = std::max<uint64_t>(1, kv_bytes_of(backend_.kv_kinds(), length));
  for (size_t k = 0; k < blocks_.kinds(); ++k) {
    const uint64_t bytes = blocks_.kind(k).block_bytes;
    const double share = static_cast<double>(kv_blocks_of(blocks_.kind(k), length) * bytes) /
                         static_cast<double>(all);
    backend_.commit_blocks(k, static_cast<size_t>(share * static_cast<double>(blocks_.budget()) /
                                                  static_cast<double>(bytes)));
  }
}

}  // namespace moebius
