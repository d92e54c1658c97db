// SPDX-License-Identifier: Apache-2.0
// The prefix cache: keys and values computed for a prefix serve every sequence that begins with the
// same tokens. A node is one block of 128 tokens below the node of the tokens before it (or, as a
// leaf, the unfinished block of an ended sequence, a "tail"). A seeded hash finds candidates, and
// token ids are compared. Prefixes of different salts are never shared. Used by the engine's thread
// alone.
//
// A node holds one block of every kind. Blocks of kinds with a finite reach (attention windows,
// recurrent states) may be evicted while the node stays: they serve only prefixes that end nearby.
// Nodes that only the cache owns are evicted least recently used first, children before parents.
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
  // Node of the tokens before; null: this is a root, which has no tokens.
  PrefixNode* parent = nullptr;
  size_t depth = 0;             // number of blocks from the root to here, this one included
  std::vector<int32_t> tokens;  // tokens of the block: 128, fewer in a tail
  std::vector<BlockId> blocks;  // block of each kind; kNoBlock: evicted
  uint64_t hash = 0;
  uint32_t pins = 0;  // running sequences that will add their next block below this node
  PrefixNode *same_hash = nullptr, *child = nullptr, *sibling = nullptr, *sibling_before = nullptr;
  // Links of two lists in order of use: the list of nodes, and that of nodes with blocks of finite
  // reach.
  struct Order {
    PrefixNode *before = nullptr, *after = nullptr;
    uint64_t stamp = 0;
  };
  Order used, used_near;
  std::string salt;  // salt of its prefixes; only set in a root
  std::string key;   // name on disk (kv_archive.h); empty: not computed yet
  bool tail() const { return parent != nullptr && tokens.size() < kBlockTokens; }
};

class PrefixTree {
 public:
  // Keeps at most `tails` unfinished blocks. `hash_mask`: bits of the hash that are used; tests
  // force collisions with it. The hash has a random seed, so that nobody can prepare prompts whose
  // blocks collide.
  PrefixTree(KvBlocks& blocks, size_t tails, uint64_t hash_mask = UINT64_MAX);
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Returns the root of a salt's prefixes, created on first use; it lives while it is pinned or has
  // children.
  PrefixNode* root(std::string_view salt);

  struct Hit {
    size_t length = 0;           // number of tokens that need not be computed
    PrefixNode* node = nullptr;  // node of the last whole block, or the root
    // Child of `node` of which the first cut_tokens tokens match; null: none. A sequence needs a
    // copy of its block.
    const PrefixNode* cut = nullptr;
    size_t cut_tokens = 0;
  };
  // Return the longest prefix of tokens[0, limit) that all kinds can serve. find() counts as a use,
  // look() does not.
  Hit find(PrefixNode* root, std::span<const int32_t> tokens, size_t limit) noexcept;
  Hit look(PrefixNode* root, std::span<const int32_t> tokens, size_t limit) const noexcept;
  // Returns the nodes of the whole blocks of tokens[0, limit), the root first, even if some of
  // their blocks were evicted.
  std::vector<PrefixNode*> path(PrefixNode* root, std::span<const int32_t> tokens,
                                size_t limit) const;

  // Returns the child that holds exactly these tokens, or null.
  PrefixNode* child_with(const PrefixNode* parent, std::span<const int32_t> tokens) const noexcept;
  // Adds a whole block below `parent` and returns its node. `own` are blocks that the caller owns,
  // one per kind (kNoBlock: none); if the node exists, they are exchanged for the node's blocks.
  PrefixNode* insert(PrefixNode* parent, std::span<const int32_t> tokens, std::span<BlockId> own);
  // Caches the unfinished block of an ended sequence; the caller still owns its blocks.
  void insert_tail(PrefixNode* parent, std::span<const int32_t> tokens,
                   std::span<const BlockId> own);

  void pin(PrefixNode* node) noexcept { ++node->pins; }
  void unpin(PrefixNode* node) noexcept;

  // Evicts the least recently used block or node; returns false if nothing can be evicted.
  bool evict() noexcept;
  void clear() noexcept;  // evicts everything that no sequence uses
  // Function that is called for each block before it is evicted. It must not throw, nor change the
  // tree.
  using Leaving = std::function<void(PrefixNode& node, size_t kind)>;
  void set_leaving(Leaving leaving) { leaving_ = std::move(leaving); }
  // Calls f for each node, the most recently used first: parents before their children.
  template <class F>
  void each(F f) const {
    for (PrefixNode* n = used_.last(); n != nullptr; n = used_.before(n)) f(*n);
  }
  size_t nodes() const noexcept { return nodes_; }
  size_t tails() const noexcept { return tails_; }
  uint64_t evictions() const noexcept { return evictions_; }

 private:
  class List {  // list of nodes, least recently used first
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
  // finite_: true: some kind has a finite reach; cuttable_: true: blocks of all kinds can be cut.
  bool finite_ = false, cuttable_ = true;
  std::unordered_map<std::string, std::unique_ptr<PrefixNode>> roots_;
  // First node of each hash; further ones follow in same_hash.
  std::unordered_map<uint64_t, PrefixNode*> found_;
  List used_{&PrefixNode::used}, near_{&PrefixNode::used_near};
  uint64_t stamp_ = 0, evictions_ = 0;
  size_t nodes_ = 0, tails_ = 0;
  Leaving leaving_;
};

}  // namespace moebius
