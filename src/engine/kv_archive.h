// SPDX-License-Identifier: Apache-2.0
// Blocks of the prefix tree on disk. A block's name is a hash of the model, the salt and all token
// ids up to its end; its file says them again, and is read only where they are equal. Unfinished
// blocks of ended sequences have the name of their first tokens: the last one wins.
//
// States are large, and of use only exactly where they were taken: they go to disk at the ends of
// sequences, where prompts part, and every fourth block.
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
  // `fingerprint`: of all that decides which bytes a block has; 64 hexadecimal digits.
  KvArchive(Backend& backend, const KvBlocks& blocks, KvDisk& disk, std::string fingerprint);

  KvDisk& disk() const { return disk_; }
  // Writes a block that will leave memory; never waits.
  void keep(PrefixNode& node, size_t kind) noexcept;
  // Writes all that the disk does not have yet, and waits for it.
  void keep_all(const PrefixTree& tree);

  // What there is of tokens[0, limit) on disk beyond what memory serves.
  KvRestore plan(const PrefixTree& tree, PrefixNode* root, std::span<const int32_t> tokens,
                 size_t limit) const;
  // Whether a block must be read for the plan, given what memory has of it.
  bool wanted(const KvRestore& restore, size_t depth, size_t kind) const;
  // Reads one block of a kind (depth counts from 1) into memory that has a number; false: it is not
  // there, or is not what was asked for. From any thread.
  bool read(const KvRestore& restore, size_t depth, size_t kind, std::span<const int32_t> tokens,
            BlockId id) const noexcept;
  // The same for the unfinished block below; `found` are all its tokens.
  bool read_tail(const KvRestore& restore, size_t kind, std::span<const int32_t> rest, BlockId id,
                 std::vector<int32_t>& found) const noexcept;
  // Runs `reading`, which reads so many of the files that are left.
  void measure(KvRestore& restore, size_t files, FunctionRef<void()> reading) const;
  // The system may fetch some blocks behind it: they are next.
  void expect(const KvRestore& restore, size_t depth) const;
  void used(const KvRestore& restore) const;  // has been read

 private:
  static std::string child_key(const std::string& parent, std::span<const int32_t> tokens);
  std::string root_key(const std::string& salt) const;
  const std::string& key_of(PrefixNode& node) const;
  static std::string name_of(const std::string& key, size_t kind);
  std::string tail_name(const std::string& parent, std::span<const int32_t> tokens,
                        size_t kind) const;
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
