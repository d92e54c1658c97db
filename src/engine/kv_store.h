// SPDX-License-Identifier: Apache-2.0
// Keys and values of running sequences: grows, shares, forks and ends block tables, on top of block
// numbers (kv_blocks.h), the cache (prefix_tree.h) and a backend's memory. Full blocks are shared
// and never written again; the unfinished block has one owner. A function that throws leaves the
// sequence as it was. Used by the engine's thread alone.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "engine/engine_stats.h"
#include "engine/kv_blocks.h"
#include "engine/kv_restore.h"
#include "engine/prefix_tree.h"
#include "model/backend.h"

namespace moebius {

class KvArchive;
class KvDisk;
class ThreadPool;

struct SequenceKv {
  BlockTables tables;  // block numbers of each kind; all tables have the same number of entries
  // Number of tokens whose keys and values are in the blocks; the tables may have more blocks, for
  // the next step.
  size_t length = 0;
  PrefixNode* node = nullptr;  // tree node of the last whole block, or the root; pinned
  std::vector<size_t> first;   // [kinds] first block that is still held
  bool empty() const { return node == nullptr; }
  size_t blocks() const { return tables.empty() ? 0 : tables[0].size(); }
};

// Return the blocks and the bytes that one running sequence of `length` tokens needs if it shares
// nothing.
size_t kv_blocks_of(const KvKind& kind, size_t length) noexcept;
uint64_t kv_bytes_of(std::span<const KvKind> kinds, size_t length) noexcept;

struct KvOptions {
  uint64_t budget = 0;              // most bytes of all blocks together
  size_t tails = 1;                 // most unfinished blocks of ended sequences that stay cached
  uint64_t hash_mask = UINT64_MAX;  // bits of the tree's hash that are used
  KvBlocks::Freed freed;   // called for each block that no sequence and no cache holds any more
  KvDisk* disk = nullptr;  // receives blocks that leave memory; null: they are lost
  std::string fingerprint = {};  // identifies the model (kv_archive.h)
  ThreadPool* pool = nullptr;    // threads that read files; null: the calling thread
};

class KvStore {
 public:
  KvStore(Backend& backend, const KvOptions& options);
  ~KvStore();

  // Returns the bytes of blocks that a sequence still needs until it is `length` tokens long.
  uint64_t bytes_until(const SequenceKv& kv, size_t length) const noexcept;
  // Returns the bytes of one block of every kind together.
  uint64_t row_bytes() const noexcept { return row_bytes_; }
  // Returns the bytes that are free or owned by the cache alone.
  uint64_t available() const noexcept { return blocks_.free_bytes() + blocks_.evictable_bytes(); }

  // Starts an empty sequence with the cached prefix of tokens[0, limit); sets kv.length to its
  // tokens.
  void attach(SequenceKv& kv, std::string_view salt, std::span<const int32_t> tokens, size_t limit);
  // Adds blocks for up to `length` tokens and returns the number of tokens that they hold: less if
  // memory ends or fewer than `keep` bytes would stay available.
  size_t grow(SequenceKv& kv, size_t length, uint64_t keep = 0);
  // Take blocks back: shrink() releases blocks that hold no token; cut() also discards what a
  // failed step wrote into the last block.
  void shrink(SequenceKv& kv) noexcept;
  void cut(SequenceKv& kv);
  // Records that a step extended the sequence to `length` tokens: full blocks enter the tree, and
  // blocks out of reach of attention windows are released.
  void advance(SequenceKv& kv, std::span<const int32_t> tokens, size_t length) noexcept;
  // Makes `to`, which must be empty, a copy of `from` that shares its full blocks. Returns false if
  // there is no memory for the unfinished block.
  bool fork(const SequenceKv& from, SequenceKv& to, uint64_t keep = 0);
  // Ends or preempts the sequence: its blocks stay in the cache.
  void end(SequenceKv& kv, std::span<const int32_t> tokens) noexcept;
  // Ends the sequence as end() does, but does not cache the unfinished block.
  void clear(SequenceKv& kv) noexcept;

  // Read from disk: plan_restore() finds what the disk has of tokens[0, limit) beyond the cache.
  // restore() reads that into the cache until it is complete or `goes_on` returns false, leaving
  // `keep` bytes available. Errors only make the found prefix shorter.
  KvRestore plan_restore(std::string_view salt, std::span<const int32_t> tokens,
                         size_t limit) noexcept;
  void restore(KvRestore& restore, std::string_view salt, std::span<const int32_t> tokens,
               uint64_t keep, FunctionRef<bool()> goes_on) noexcept;
  const KvArchive* archive() const noexcept { return archive_.get(); }
  // Writes the whole cache to disk, if there is one, and waits.
  void keep_all();

  // Returns one block of every kind for measurements, to be returned with give_back(); empty: no
  // memory.
  BlockTables scratch();
  void give_back(BlockTables& tables) noexcept;

  // Lets the backend release the memory of free block numbers, if there are more numbers than the
  // budget holds.
  void tidy();
  // Allocates the whole budget now, divided between kinds as sequences of `length` tokens need it.
  // Throws Error.
  void commit(size_t length);

  KvFigures figures() const noexcept;
  const KvBlocks& blocks() const noexcept { return blocks_; }
  PrefixTree& tree() noexcept { return tree_; }
  const PrefixTree& tree() const noexcept { return tree_; }

 private:
  BlockId take(size_t kind, uint64_t keep);
  bool add_row(SequenceKv& kv, uint64_t keep);
  void hold_path(SequenceKv& kv, PrefixNode* node, size_t length);
  PrefixNode* restore_blocks(KvRestore& restore, PrefixNode* parent,
                             std::span<const int32_t> tokens, uint64_t keep);
  void restore_tail(KvRestore& restore, PrefixNode* parent, std::span<const int32_t> tokens,
                    uint64_t keep);
  bool copy_last(SequenceKv& kv, std::span<const BlockId> from, size_t tokens, uint64_t keep);
  void drop_entry(SequenceKv& kv, size_t kind, size_t block) noexcept;
  void release_passed(SequenceKv& kv) noexcept;
  Backend& backend_;
  KvBlocks blocks_;
  PrefixTree tree_;
  std::unique_ptr<KvArchive> archive_;  // disk cache; null: none
  ThreadPool* pool_;
  uint64_t row_bytes_ = 0;
  std::vector<BlockId> row_;  // scratch memory: block numbers, one per kind
};

}  // namespace moebius
