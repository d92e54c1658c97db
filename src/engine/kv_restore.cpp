// SPDX-License-Identifier: Apache-2.0
// Brings blocks back from disk into the cache before a sequence begins, which then finds them as if
// they had never left. A block that cannot be read, or has no memory, is computed.
#include <algorithm>

#include "engine/kv_archive.h"
#include "engine/kv_store.h"
#include "runtime/parallel.h"

namespace moebius {
namespace {

// Blocks that threads read side by side before other sequences have their turn: as many as are read
// in some milliseconds.
constexpr size_t kAtOnce = 8, kMostAtOnce = 64;
constexpr uint64_t kBytesAtOnce = uint64_t{16} << 20;

// Asks the system to read the next blocks ahead. Thread-safe; a failure does not matter.
void expect_next(const KvArchive& archive, const KvRestore& r, size_t depth) noexcept {
  try {
    archive.expect(r, depth);
  } catch (const std::exception&) {
    // Read-ahead is only a hint: if it fails, the read itself reports the error.
  }
}

}  // namespace

KvRestore KvStore::plan_restore(std::string_view salt, std::span<const int32_t> tokens,
                                size_t limit) noexcept {
  KvRestore out;
  PrefixNode* root = nullptr;
  try {
    root = tree_.root(salt);
    tree_.pin(root);
    out = archive_->plan(tree_, root, tokens, limit);
  } catch (const std::exception&) {
    out = {};
    out.failed = true;
  }
  out.planned = true;
  if (root != nullptr) tree_.unpin(root);
  return out;
}

void KvStore::restore(KvRestore& r, std::string_view salt, std::span<const int32_t> tokens,
                      uint64_t keep, FunctionRef<bool()> goes_on) noexcept {
  PrefixNode* parent = nullptr;
  try {
    PrefixNode* root = tree_.root(salt);
    parent = tree_.path(root, tokens, r.next * kBlockTokens).back();
    tree_.pin(parent);                            // also pins all nodes before it
    if (parent->depth < r.next) r.failed = true;  // a block was dropped meanwhile
    while (!r.done()) {
      if (r.next < r.blocks) {
        parent = restore_blocks(r, parent, tokens, keep);
      } else {
        restore_tail(r, parent, tokens.subspan(r.blocks * kBlockTokens), keep);
        r.tail = 0;
      }
      if (!goes_on()) break;
    }
    if (r.done()) archive_->used(r);
  } catch (const std::exception&) {
    r.failed = true;
  }
  if (parent != nullptr) tree_.unpin(parent);
}

// Reads the next few blocks, side by side if there are threads. Returns the last node that exists
// now, pinned instead of `parent`.
PrefixNode* KvStore::restore_blocks(KvRestore& r, PrefixNode* parent,
                                    std::span<const int32_t> tokens, uint64_t keep) {
  const size_t kinds = blocks_.kinds(), first = r.next;
  const uint64_t each = r.bytes / std::max<size_t>(1, r.blocks - first);
  const size_t small = std::min<size_t>(kMostAtOnce, kBytesAtOnce / std::max<uint64_t>(1, each));
  const size_t rows = std::min(r.blocks - first, pool_ == nullptr ? 1 : std::max(kAtOnce, small));
  const auto ids_of = [&](size_t row) {
    return tokens.subspan((first + row) * kBlockTokens, kBlockTokens);
  };
  struct Load {
    size_t row, kind;
    BlockId id;
    bool good;
  };
  std::vector<Load> loads;  // missing blocks
  const PrefixNode* known = parent;
  for (size_t row = 0; row < rows; ++row) {
    if (known != nullptr) known = tree_.child_with(known, ids_of(row));
    for (size_t k = 0; k < kinds; ++k)
      if (archive_->wanted(r, first + row + 1, k) &&
          (known == nullptr || known->blocks[k] == kNoBlock))
        loads.push_back({row, k, kNoBlock, false});
  }
  ScopedBlocks own{blocks_, std::vector(rows * kinds, kNoBlock)};
  try {
    for (Load& l : loads) {
      l.id = own.ids[l.row * kinds + l.kind] = take(l.kind, keep);
      if (l.id == kNoBlock) r.failed = true;
      if (r.failed) break;
      backend_.commit_blocks(l.kind, size_t{l.id} + 1);
    }
    if (!r.failed) {
      archive_->measure(r, loads.size(), [&] {
        parallel_for(pool_, loads.size() + 1, [&](size_t i) {
          if (i == 0) return expect_next(*archive_, r, first + rows);
          Load& l = loads[i - 1];
          l.good = archive_->read(r, first + l.row + 1, l.kind, tokens, l.id);
        });
      });
    }
    for (size_t row = 0, at = 0; row < rows && !r.failed; ++row) {
      for (; at < loads.size() && loads[at].row == row; ++at)
        r.failed = r.failed || !loads[at].good;
      if (r.failed) break;
      PrefixNode* node =
          tree_.insert(parent, ids_of(row), std::span(own.ids).subspan(row * kinds, kinds));
      tree_.pin(node);
      tree_.unpin(parent);
      parent = node;
      ++r.next;
    }
  } catch (const std::exception&) {
    r.failed = true;
  }
  return parent;
}

void KvStore::restore_tail(KvRestore& r, PrefixNode* parent, std::span<const int32_t> rest,
                           uint64_t keep) {
  ScopedBlocks own{blocks_, std::vector(blocks_.kinds(), kNoBlock)};
  std::vector<int32_t> found;
  for (size_t k = 0; k < own.ids.size(); ++k) {
    const BlockId id = own.ids[k] = take(k, keep);
    if (id == kNoBlock) return;
    backend_.commit_blocks(k, size_t{id} + 1);
    if (!archive_->read_tail(r, k, rest, id, found)) return;
  }
  tree_.insert_tail(parent, found, own.ids);
}

void KvStore::keep_all() {
  if (archive_ != nullptr) archive_->keep_all(tree_);
}

}  // namespace moebius
