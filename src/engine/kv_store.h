// SPDX-License-Identifier: Apache-2.0
// The keys and values of running sequences: block tables that grow, share, fork and end, over the
// numbers (kv_blocks.h), the cache (prefix_tree.h) and a backend's memory. Full blocks are shared
// and never written again; the unfinished block has one owner. Whatever throws leaves the sequence
// as it was.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "engine/kv_blocks.h"
#include "engine/kv_restore.h"
#include "engine/prefix_tree.h"
#include "model/backend.h"

namespace moebius {

class KvArchive;
class KvDisk;
class ThreadPool;

struct SequenceKv {
  BlockTables tables;          // all kinds the same number of entries
  size_t length = 0;           // tokens in the blocks; more blocks may be there for the next step
  PrefixNode* node = nullptr;  // of its last block in the tree, or the root; pinned
  std::vector<size_t> first;   // of every kind, the first block that is still held
  bool empty() const { return node == nullptr; }
  size_t blocks() const { return tables.empty() ? 0 : tables[0].size(); }
};

// Blocks and bytes of one sequence of `length` tokens that shares nothing, while it runs.
size_t kv_blocks_of(const KvKind& kind, size_t length) noexcept;
uint64_t kv_bytes_of(std::span<const KvKind> kinds, size_t length) noexcept;

struct KvOptions {
  uint64_t budget = 0;  // bytes of all blocks
  size_t tails = 1;     // unfinished blocks of ended sequences that are kept
  uint64_t hash_seed = 0, hash_mask = UINT64_MAX;
  KvBlocks::Freed freed;         // told of every block that nobody owns any more
  KvDisk* disk = nullptr;        // keeps what leaves memory; null: nothing does
  std::string fingerprint = {};  // of the model (kv_archive.h)
  ThreadPool* pool = nullptr;    // to read with; null: the calling thread
};

class KvStore {
 public:
  KvStore(Backend& backend, const KvOptions& options);
  ~KvStore();

  // Bytes that a sequence still has to get until it is `length` long.
  uint64_t bytes_until(const SequenceKv& kv, size_t length) const noexcept;
  // Bytes of one block of every kind.
  uint64_t row_bytes() const noexcept { return row_bytes_; }
  // Free, or owned by the cache alone.
  uint64_t available() const noexcept { return blocks_.free_bytes() + blocks_.evictable_bytes(); }

  // Starts an empty sequence with what the cache has of tokens[0, limit): kv.length says how much.
  void attach(SequenceKv& kv, std::string_view salt, std::span<const int32_t> tokens, size_t limit);
  // Gives it blocks up to `length` tokens and returns how far they reach: less where there is no
  // memory that leaves `keep` bytes available.
  size_t grow(SequenceKv& kv, size_t length, uint64_t keep = 0);
  // Takes back blocks that no token reached; after a failed step also what it left in the last one.
  void shrink(SequenceKv& kv) noexcept;
  void cut(SequenceKv& kv);
  // A step brought the sequence to `length`: full blocks go to the tree, those out of reach go.
  void advance(SequenceKv& kv, std::span<const int32_t> tokens, size_t length) noexcept;
  // `to`, empty, becomes the same sequence. False: no memory for its unfinished block.
  bool fork(const SequenceKv& from, SequenceKv& to, uint64_t keep = 0);
  // The sequence is over or has to wait: what it had becomes cache.
  void end(SequenceKv& kv, std::span<const int32_t> tokens) noexcept;
  void clear(SequenceKv& kv) noexcept;  // the same without its unfinished block

  // What there is on disk of tokens[0, limit) beyond what the cache has; then reads it into the cache
  // until it is all there or `goes_on` says no, and leaves `keep` bytes available. Whatever goes wrong,
  // less is found.
  KvRestore plan_restore(std::string_view salt, std::span<const int32_t> tokens,
                         size_t limit) noexcept;
  void restore(KvRestore& restore, std::string_view salt, std::span<const int32_t> tokens,
               uint64_t keep, FunctionRef<bool()> goes_on) noexcept;
  const KvArchive* archive() const noexcept { return archive_.get(); }
  // Writes the whole cache to disk, where there is one.
  void keep_all();

  // One block of every kind that belongs to nobody's sequence; empty: no memory.
  BlockTables scratch();
  void give_back(BlockTables& tables) noexcept;

  // Memory of numbers that are not used goes back where numbers have outgrown the budget.
  void tidy();
  // Makes the whole budget usable now, shared between kinds as sequences of `length` tokens do.
  void commit(size_t length);

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
  std::unique_ptr<KvArchive> archive_;  // null: there is no disk
  ThreadPool* pool_;
  uint64_t row_bytes_ = 0;
  std::vector<BlockId> row_;  // of every kind
};

}  // namespace moebius
