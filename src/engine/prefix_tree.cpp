// SPDX-License-Identifier: Apache-2.0
// Implements the prefix cache (prefix_tree.h). Everything that can throw (allocating a node, or its
// place in the hash table) happens before anything changes.
#include "engine/prefix_tree.h"

#include <algorithm>
#include <random>

namespace moebius {
namespace {

constexpr size_t kChildrenCompared = 64;  // most recent children that are compared for a cut

uint64_t mixed(uint64_t z) noexcept {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

size_t common_prefix(std::span<const int32_t> a, std::span<const int32_t> b) noexcept {
  const size_t n = std::min(a.size(), b.size());
  return static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(n), b.begin()).first -
      a.begin());
}

}  // namespace

void PrefixTree::List::append(PrefixNode* n, uint64_t stamp) noexcept {
  PrefixNode::Order& o = n->*order_;
  o = {last_, nullptr, stamp};
  (last_ != nullptr ? (last_->*order_).after : first_) = n;
  last_ = n;
}

void PrefixTree::List::remove(PrefixNode* n) noexcept {
  PrefixNode::Order& o = n->*order_;
  (o.before != nullptr ? (o.before->*order_).after : first_) = o.after;
  (o.after != nullptr ? (o.after->*order_).before : last_) = o.before;
  o = {};
}

PrefixTree::PrefixTree(KvBlocks& blocks, size_t tails, uint64_t hash_mask)
    : blocks_(blocks), most_tails_(tails), seed_(std::random_device()()), mask_(hash_mask) {
  for (size_t k = 0; k < blocks.kinds(); ++k) {
    finite_ = finite_ || blocks.kind(k).reach != SIZE_MAX;
    cuttable_ = cuttable_ && blocks.kind(k).cuttable;
  }
}

PrefixTree::~PrefixTree() {
  while (PrefixNode* n = used_.first()) {
    used_.remove(n);
    delete n;
  }
}

PrefixNode* PrefixTree::root(std::string_view salt) {
  const auto [it, added] = roots_.try_emplace(std::string(salt));
  if (added) {
    try {
      it->second = std::make_unique<PrefixNode>();
      it->second->salt = salt;
    } catch (...) {
      roots_.erase(it);
      throw;
    }
  }
  return it->second.get();
}

uint64_t PrefixTree::hash_of(const PrefixNode* parent,
                             std::span<const int32_t> tokens) const noexcept {
  uint64_t h = mixed(seed_ ^ reinterpret_cast<uintptr_t>(parent));
  for (const int32_t t : tokens) h = mixed(h + static_cast<uint32_t>(t) + 0x9e3779b97f4a7c15u);
  return h & mask_;
}

PrefixNode* PrefixTree::child_with(const PrefixNode* parent,
                                   std::span<const int32_t> tokens) const noexcept {
  const auto it = found_.find(hash_of(parent, tokens));
  for (PrefixNode* n = it == found_.end() ? nullptr : it->second; n != nullptr; n = n->same_hash)
    if (n->parent == parent && std::equal(tokens.begin(), tokens.end(), n->tokens.begin()))
      return n;
  return nullptr;
}

// Returns whether every kind has what the token at `length` reads. `node` ends the whole blocks;
// `cut` has the rest.
bool PrefixTree::can_serve(const PrefixNode* node, const PrefixNode* cut,
                           size_t length) const noexcept {
  for (size_t k = 0; k < blocks_.kinds(); ++k) {
    const KvKind& kind = blocks_.kind(k);
    const size_t first = first_block_needed(kind, length);
    if (cut != nullptr && cut->blocks[k] == kNoBlock) return false;
    if (cut != nullptr && !kind.cuttable &&
        node->depth * kBlockTokens + cut->tokens.size() != length)
      return false;
    for (const PrefixNode* n = node; n->depth > first; n = n->parent)
      if (n->blocks[k] == kNoBlock) return false;
  }
  return true;
}

void PrefixTree::find_cut(Hit& hit, std::span<const int32_t> rest) const noexcept {
  size_t compared = 0;
  for (const PrefixNode* c = hit.node->child; c != nullptr && compared < kChildrenCompared;
       c = c->sibling, ++compared) {
    const size_t n = common_prefix(c->tokens, rest);
    if (n <= hit.cut_tokens || !can_serve(hit.node, c, hit.node->depth * kBlockTokens + n))
      continue;
    hit.cut = c;
    hit.cut_tokens = n;
  }
}

PrefixNode* PrefixTree::deepest(PrefixNode* root, std::span<const int32_t> tokens) const noexcept {
  PrefixNode* node = root;
  while (tokens.size() >= (node->depth + 1) * kBlockTokens) {
    PrefixNode* next = child_with(node, tokens.subspan(node->depth * kBlockTokens, kBlockTokens));
    if (next == nullptr) break;
    node = next;
  }
  return node;
}

PrefixTree::Hit PrefixTree::hit_below(PrefixNode* root, PrefixNode* deepest,
                                      std::span<const int32_t> tokens) const noexcept {
  Hit hit;
  hit.node = deepest;
  find_cut(hit, tokens.subspan(deepest->depth * kBlockTokens));
  if (hit.cut == nullptr)
    while (hit.node != root && !can_serve(hit.node, nullptr, hit.node->depth * kBlockTokens))
      hit.node = hit.node->parent;
  hit.length = hit.node->depth * kBlockTokens + hit.cut_tokens;
  return hit;
}

PrefixTree::Hit PrefixTree::find(PrefixNode* root, std::span<const int32_t> tokens,
                                 size_t limit) noexcept {
  tokens = tokens.first(std::min(tokens.size(), limit));
  PrefixNode* last = deepest(root, tokens);
  const Hit hit = hit_below(root, last, tokens);
  PrefixNode* end = hit.cut == nullptr ? hit.node : const_cast<PrefixNode*>(hit.cut);
  touch(hit.cut == nullptr ? last : end);
  touch_near(end, hit.length);
  return hit;
}

PrefixTree::Hit PrefixTree::look(PrefixNode* root, std::span<const int32_t> tokens,
                                 size_t limit) const noexcept {
  tokens = tokens.first(std::min(tokens.size(), limit));
  return hit_below(root, deepest(root, tokens), tokens);
}

std::vector<PrefixNode*> PrefixTree::path(PrefixNode* root, std::span<const int32_t> tokens,
                                          size_t limit) const {
  PrefixNode* last = deepest(root, tokens.first(std::min(tokens.size(), limit)));
  std::vector<PrefixNode*> out(last->depth + 1);
  for (PrefixNode* n = last; n != nullptr; n = n->parent) out[n->depth] = n;
  return out;
}

// Touches a node and all above it, the deepest first, so that a child is always older than its
// parent. Blocks of finite reach are touched after the nodes: a leaf is dropped as a whole before
// it loses the blocks that make it useful.
void PrefixTree::touch(PrefixNode* node) noexcept {
  for (; node->parent != nullptr; node = node->parent) {
    used_.remove(node);
    used_.append(node, ++stamp_);
  }
}

void PrefixTree::touch_near(PrefixNode* node, size_t length) noexcept {
  if (!finite_) return;
  size_t first = SIZE_MAX;
  for (size_t k = 0; k < blocks_.kinds(); ++k)
    if (blocks_.kind(k).reach != SIZE_MAX)
      first = std::min(first, first_block_needed(blocks_.kind(k), length));
  for (; node->parent != nullptr && node->depth > first; node = node->parent) {
    near_.remove(node);
    near_.append(node, ++stamp_);
  }
}

PrefixNode* PrefixTree::add_node(PrefixNode* parent, std::span<const int32_t> tokens, bool hashed) {
  auto node = std::make_unique<PrefixNode>();
  node->tokens.assign(tokens.begin(), tokens.end());
  node->blocks.assign(blocks_.kinds(), kNoBlock);
  node->parent = parent;
  node->depth = parent->depth + 1;
  if (hashed) {
    node->hash = hash_of(parent, tokens);
    PrefixNode*& first = found_[node->hash];
    node->same_hash = first;
    first = node.get();
  }
  node->sibling = parent->child;
  if (parent->child != nullptr) parent->child->sibling_before = node.get();
  parent->child = node.get();
  used_.append(node.get(), ++stamp_);
  if (finite_) near_.append(node.get(), ++stamp_);
  ++nodes_;
  return node.release();
}

PrefixNode* PrefixTree::insert(PrefixNode* parent, std::span<const int32_t> tokens,
                               std::span<BlockId> own) {
  PrefixNode* node = child_with(parent, tokens);
  if (node == nullptr) node = add_node(parent, tokens, /*hashed=*/true);
  for (size_t k = 0; k < own.size(); ++k) {
    if (node->blocks[k] == kNoBlock && own[k] != kNoBlock) {
      blocks_.cache(k, own[k]);
      node->blocks[k] = own[k];
    } else if (own[k] != kNoBlock && own[k] != node->blocks[k]) {
      blocks_.hold(k, node->blocks[k]);
      blocks_.drop(k, own[k]);
      own[k] = node->blocks[k];
    }
  }
  touch(node);
  touch_near(node, node->depth * kBlockTokens);
  return node;
}

void PrefixTree::insert_tail(PrefixNode* parent, std::span<const int32_t> tokens,
                             std::span<const BlockId> own) {
  if (most_tails_ == 0 || tokens.empty()) return;
  for (PrefixNode *c = parent->child, *next = nullptr; c != nullptr; c = next) {
    next = c->sibling;
    const size_t n = common_prefix(c->tokens, tokens);
    const bool covers = n == tokens.size(), covered = n == c->tokens.size();
    if (covers && (cuttable_ || covered) &&
        can_serve(parent, c, parent->depth * kBlockTokens + n)) {
      touch(c);
      touch_near(c, parent->depth * kBlockTokens + n);
      return;  // it serves everything that the new one could
    }
    if (covered && cuttable_ && removable(c)) remove_node(c);
  }
  while (tails_ >= most_tails_) {
    PrefixNode* oldest = used_.first();
    while (oldest != nullptr && !(oldest->tail() && removable(oldest)))
      oldest = used_.after(oldest);
    if (oldest == nullptr) return;
    remove_node(oldest);
  }
  PrefixNode* node = add_node(parent, tokens, /*hashed=*/false);
  ++tails_;
  for (size_t k = 0; k < own.size(); ++k) {
    if (own[k] == kNoBlock) continue;
    blocks_.cache(k, own[k]);
    node->blocks[k] = own[k];
  }
  touch(node);
  touch_near(node, parent->depth * kBlockTokens + tokens.size());
}

bool PrefixTree::removable(const PrefixNode* node) const noexcept {
  if (node->child != nullptr || node->pins > 0) return false;
  for (size_t k = 0; k < blocks_.kinds(); ++k)
    if (node->blocks[k] != kNoBlock && !blocks_.evictable(k, node->blocks[k])) return false;
  return true;
}

void PrefixTree::remove_node(PrefixNode* node) noexcept {
  for (size_t k = 0; k < blocks_.kinds(); ++k)
    if (node->blocks[k] != kNoBlock) blocks_.uncache(k, node->blocks[k]);
  if (node->tail()) {
    --tails_;
  } else {
    const auto it = found_.find(node->hash);
    PrefixNode** at = &it->second;
    while (*at != node) at = &(*at)->same_hash;
    *at = node->same_hash;
    if (it->second == nullptr) found_.erase(it);
  }
  if (node->sibling != nullptr) node->sibling->sibling_before = node->sibling_before;
  (node->sibling_before != nullptr ? node->sibling_before->sibling : node->parent->child) =
      node->sibling;
  used_.remove(node);
  if (finite_) near_.remove(node);
  --nodes_;
  PrefixNode* parent = node->parent;
  delete node;
  drop_root_if_bare(parent);
}

void PrefixTree::drop_root_if_bare(PrefixNode* node) noexcept {
  if (node->parent != nullptr || node->child != nullptr || node->pins > 0) return;
  const auto it = roots_.find(node->salt);
  if (it != roots_.end()) roots_.erase(it);
}

void PrefixTree::unpin(PrefixNode* node) noexcept {
  --node->pins;
  drop_root_if_bare(node);
}

// Drops the blocks of finite reach that only the cache owns.
bool PrefixTree::drop_near(PrefixNode* node) noexcept {
  bool any = false;
  for (size_t k = 0; k < blocks_.kinds(); ++k) {
    BlockId& id = node->blocks[k];
    if (blocks_.kind(k).reach == SIZE_MAX || id == kNoBlock || !blocks_.evictable(k, id)) continue;
    if (leaving_) leaving_(*node, k);
    blocks_.uncache(k, id);
    id = kNoBlock;
    any = true;
  }
  if (any) {  // the rest of the node is not checked again soon
    near_.remove(node);
    near_.append(node, ++stamp_);
  }
  return any;
}

bool PrefixTree::evict() noexcept {
  PrefixNode* leaf = used_.first();
  while (leaf != nullptr && !removable(leaf)) leaf = used_.after(leaf);
  const uint64_t until = leaf == nullptr ? UINT64_MAX : leaf->used.stamp;
  for (PrefixNode* n = near_.first(); n != nullptr && n->used_near.stamp < until;
       n = near_.after(n)) {
    if (!drop_near(n)) continue;
    ++evictions_;
    return true;
  }
  if (leaf == nullptr) return false;
  for (size_t k = 0; leaving_ && k < blocks_.kinds(); ++k)
    if (leaf->blocks[k] != kNoBlock) leaving_(*leaf, k);
  remove_node(leaf);
  ++evictions_;
  return true;
}

void PrefixTree::clear() noexcept {
  while (evict()) {
  }
}

}  // namespace moebius
