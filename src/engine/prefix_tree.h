// SPDX-License-Identifier: Apache-2.0
// The cache of keys and values: what was computed for a prefix serves every sequence that begins
// with the same tokens. A node is one block of 128 tokens below the node of the tokens before it
// (or, as a leaf, the unfinished block of a sequence that ended); a seeded hash finds candidates,
// token ids decide. Prefixes of different salts never meet.
//
// A node holds a block of every kind. Blocks of kinds with a finite reach (windows, states) may be
// gone while the node stays: they serve only prefixes that end nearby. What nobody else owns is
// evicted least recently used first, leaves before what they hang from.
#pragma once
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine/kv_blocks.h"

namespace moebius {

struct PrefixNode {
  PrefixNode* parent = nullptr;  // null: a root, which has no tokens
  size_t depth = 0;              // blocks from the root, this one included
  std::vector<int32_t> tokens;   // 128; fewer in a tail
  std::vector<BlockId> blocks;   // of every kind
  uint64_t hash = 0;
  uint32_t pins = 0;  // sequences that will add their next block below it
  PrefixNode *same_hash = nullptr, *child = nullptr, *sibling = nullptr, *sibling_before = nullptr;
  // Two orders of use: of the node, and of its blocks of finite reach.
  struct Order {
    PrefixNode *before = nullptr, *after = nullptr;
    uint64_t stamp = 0;
  };
  Order used, used_near;
  std::string salt;  // of a root
  std::string key;   // on disk (kv_archive.h); empty: not asked for yet
  bool tail() const { return parent != nullptr && tokens.size() < kBlockTokens; }
};

class PrefixTree {
 public:
  // Keeps at most `tails` tails. `hash_mask`: bits of the hash that count (for tests).
  PrefixTree(KvBlocks& blocks, size_t tails, uint64_t seed, uint64_t hash_mask = UINT64_MAX);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // The node that all prefixes of a salt hang from; lives as long as it is pinned or has children.
  PrefixNode* root(std::string_view salt);

  struct Hit {
    size_t length = 0;                // tokens that need not be computed
    PrefixNode* node = nullptr;       // of the last whole block, or the root
    const PrefixNode* cut = nullptr;  // child of it whose first tokens go on, by a copy
    size_t cut_tokens = 0;
  };
  // The longest prefix of tokens[0, limit) that every kind can serve. Counts as a use.
  Hit find(PrefixNode* root, std::span<const int32_t> tokens, size_t limit) noexcept;
  Hit look(PrefixNode* root, std::span<const int32_t> tokens, size_t limit) const noexcept;
  // The whole blocks of tokens[0, limit) that have nodes, whatever blocks these have; the root first.
  std::vector<PrefixNode*> path(PrefixNode* root, std::span<const int32_t> tokens,
                                size_t limit) const;

  // Null: there is none.
  PrefixNode* child_with(const PrefixNode* parent, std::span<const int32_t> tokens) const noexcept;
  // The node of a whole block below `parent`. `own` (of every kind, kNoBlock where there is none)
  // are owned by the caller; where the node has one already, the caller's is exchanged for it.
  PrefixNode* insert(PrefixNode* parent, std::span<const int32_t> tokens, std::span<BlockId> own);
  // Keeps an unfinished block of a sequence that ended; the caller still owns its blocks.
  void insert_tail(PrefixNode* parent, std::span<const int32_t> tokens,
                   std::span<const BlockId> own);

  void pin(PrefixNode* node) noexcept { ++node->pins; }
  void unpin(PrefixNode* node) noexcept;

  // Frees what was used least recently; false: nothing can be freed.
  bool evict() noexcept;
  void clear() noexcept;  // evicts all that can be
  // Told of a block before it is evicted; must not throw, nor change the tree.
  using Leaving = std::function<void(PrefixNode& node, size_t kind)>;
  void set_leaving(Leaving leaving) { leaving_ = std::move(leaving); }
  // Every node, the most recently used first: parents before what hangs from them.
  template <class F>
  void each(F f) const {
    for (PrefixNode* n = used_.last(); n != nullptr; n = used_.before(n)) f(*n);
  }
  size_t nodes() const noexcept { return nodes_; }
  size_t tails() const noexcept { return tails_; }
  uint64_t evictions() const noexcept { return evictions_; }

 private:
  class List {  // of nodes, least recent first
   public:
    explicit List(PrefixNode::Order PrefixNode::*order) : order_(order) {}
    PrefixNode* first() const noexcept { return first_; }
    PrefixNode* last() const noexcept { return last_; }
    PrefixNode* after(const PrefixNode* n) const noexcept { return (n->*order_).after; }
    PrefixNode* before(const PrefixNode* n) const noexcept { return (n->*order_).before; }
    void append(PrefixNode* n, uint64_t stamp) noexcept;
    void remove(PrefixNode* n) noexcept;

   private:
    PrefixNode::Order PrefixNode::*order_;
    PrefixNode *first_ = nullptr, *last_ = nullptr;
  };
  uint64_t hash_of(const PrefixNode* parent, std::span<const int32_t> tokens) const noexcept;
  PrefixNode* add_node(PrefixNode* parent, std::span<const int32_t> tokens, bool hashed);
  void remove_node(PrefixNode* node) noexcept;
  void drop_root_if_bare(PrefixNode* node) noexcept;
  bool removable(const PrefixNode* node) const noexcept;
  bool can_serve(const PrefixNode* node, const PrefixNode* cut, size_t length) const noexcept;
  PrefixNode* deepest(PrefixNode* root, std::span<const int32_t> tokens) const noexcept;
  Hit hit_below(PrefixNode* root, PrefixNode* deepest,
                std::span<const int32_t> tokens) const noexcept;
  void find_cut(Hit& hit, std::span<const int32_t> rest) const noexcept;
  void touch(PrefixNode* node) noexcept;
  void touch_near(PrefixNode* node, size_t length) noexcept;
  bool drop_near(PrefixNode* node) noexcept;

  KvBlocks& blocks_;
  size_t most_tails_;
  uint64_t seed_, mask_;
  bool finite_ = false, cuttable_ = true;  // some kind has a finite reach; all can be cut
  std::unordered_map<std::string, std::unique_ptr<PrefixNode>> roots_;
  std::unordered_map<uint64_t, PrefixNode*> found_;  // by hash, then along same_hash
  List used_{&PrefixNode::used}, near_{&PrefixNode::used_near};
  uint64_t stamp_ = 0, evictions_ = 0;
  size_t nodes_ = 0, tails_ = 0;
  Leaving leaving_;
};

}  // namespace moebius
