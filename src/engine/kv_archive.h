// SPDX-License-Identifier: Apache-2.0
// Stores blocks of the prefix tree on disk. The name of a block's file is a hash of the model, the
// salt and all token ids up to the block's end; the file repeats them, and is used only if they are
// equal. An unfinished block of an ended sequence is named after its first tokens: the last one
// written wins.
//
// States of recurrent layers are large and can be used only at the position where they were saved:
// they go to disk at the ends of sequences, where prompts part, and every fourth block.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/function_ref.h"
#include "engine/kv_disk.h"
#include "engine/kv_file.h"
#include "engine/kv_restore.h"
#include "engine/prefix_tree.h"

namespace moebius {

class KvArchive {
 public:
  // `fingerprint`: hash of everything on which the bytes of a block depend; 64 hexadecimal digits.
  KvArchive(Backend& backend, const KvBlocks& blocks, KvDisk& disk, std::string fingerprint);

  KvDisk& disk() const { return disk_; }
  // Queues a block that is about to leave memory for writing. Never waits; the block is dropped if
  // too much is queued.
  void keep(PrefixNode& node, size_t kind) noexcept;
  // Writes all blocks that the disk does not have yet, and waits for the writes.
  void keep_all(const PrefixTree& tree);

  // Returns a plan for reading what the disk has of tokens[0, limit) beyond what memory has.
  KvRestore plan(const PrefixTree& tree, PrefixNode* root, std::span<const int32_t> tokens,
                 size_t limit) const;
  // Returns true if the plan needs a block read, given what memory has of it.
  bool wanted(const KvRestore& restore, size_t depth, size_t kind) const;
  // Reads one block of a kind (depth counts from 1) into block `id` of the backend. Returns false
  // if the file is missing or is not the block that was asked for. Thread-safe.
  bool read(const KvRestore& restore, size_t depth, size_t kind, std::span<const int32_t> tokens,
            BlockId id) const noexcept;
  // Reads the unfinished block after the last whole one into block `id`, as read() does; `found`
  // receives all its tokens.
  bool read_tail(const KvRestore& restore, size_t kind, std::span<const int32_t> rest, BlockId id,
                 std::vector<int32_t>& found) const noexcept;
  // Runs `reading`, which reads `files` of the remaining files, and learns the speed of the disk
  // from its time.
  void measure(KvRestore& restore, size_t files, FunctionRef<void()> reading) const;
  // Tells the system to read ahead some blocks after `depth`, which are needed next.
  void expect(const KvRestore& restore, size_t depth) const;
  void used(const KvRestore& restore) const;  // records that the plan's files were used last

 private:
  static std::string child_key(const std::string& parent, std::span<const int32_t> tokens);
  std::string root_key(const std::string& salt) const;
  const std::string& key_of(PrefixNode& node) const;
  static std::string name_of(const std::string& key, size_t kind);
  std::string tail_name(const std::string& parent, std::span<const int32_t> tokens,
                        size_t kind) const;
  // Returns what the head of a block's file says; `length`: tokens up to the block's end, or, for a
  // file to be read, tokens before the block.
  KvFile file_of(const std::string& parent, size_t kind, uint64_t length,
                 std::span<const int32_t> tokens) const;
  bool worth(const PrefixNode& node, size_t kind) const;
  bool near_blocks_are_there(const KvRestore& restore, std::span<PrefixNode* const> path,
                             size_t depth) const;
  void write(PrefixNode& node, size_t kind, uint64_t order, bool wait);
  bool load(const std::string& name, const KvFile& expected, bool prefix, BlockId id,
            std::vector<int32_t>* found) const;

  Backend& backend_;
  const KvBlocks& blocks_;
  KvDisk& disk_;
  std::string fingerprint_;
};

}  // namespace moebius
