// SPDX-License-Identifier: Apache-2.0
#include "engine/kv_archive.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/checksum.h"
#include "base/error.h"
#include "base/sha256.h"

namespace moebius {
namespace {

// Tokens that name an unfinished block; a shorter one is not kept.
constexpr size_t kTailTokens = 16;
constexpr size_t kStateEvery = 4;  // blocks between two stored states
constexpr size_t kExpected = 8;    // blocks that are read ahead

std::span<const uint8_t> bytes_of_ids(std::span<const int32_t> tokens) {
  return {reinterpret_cast<const uint8_t*>(tokens.data()), tokens.size_bytes()};
}

void add_text(Sha256& sum, std::string_view text) {
  sum.add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

std::span<const int32_t> block_tokens(std::span<const int32_t> tokens, size_t depth) {
  return tokens.subspan((depth - 1) * kBlockTokens, kBlockTokens);
}

}  // namespace

KvArchive::KvArchive(Backend& backend, const KvBlocks& blocks, KvDisk& disk,
                     std::string fingerprint)
    : backend_(backend), blocks_(blocks), disk_(disk), fingerprint_(std::move(fingerprint)) {
  for (size_t k = 0; k < blocks.kinds(); ++k)
    if (backend.stored_bytes(k) == 0)
      fail("--kv-dir: the device that has layers of the kind '{}' keeps their blocks to itself",
           blocks.kind(k).name);
}

// --- names ---

std::string KvArchive::root_key(const std::string& salt) const {
  Sha256 sum;
  add_text(sum, "root ");
  add_text(sum, fingerprint_);
  add_text(sum, salt);
  return sum.hex();
}

std::string KvArchive::child_key(const std::string& parent, std::span<const int32_t> tokens) {
  Sha256 sum;
  add_text(sum, parent);
  sum.add(bytes_of_ids(tokens));
  return sum.hex();
}

const std::string& KvArchive::key_of(PrefixNode& node) const {
  std::vector<PrefixNode*> without;
  for (PrefixNode* n = &node; n != nullptr && n->key.empty(); n = n->parent) without.push_back(n);
  for (; !without.empty(); without.pop_back()) {
    PrefixNode& n = *without.back();
    n.key = n.parent == nullptr ? root_key(n.salt) : child_key(n.parent->key, n.tokens);
  }
  return node.key;
}

std::string KvArchive::name_of(const std::string& key, size_t kind) {
  return fmt::format("{}-{}.kv", key, kind);
}

std::string KvArchive::tail_name(const std::string& parent, std::span<const int32_t> tokens,
                                 size_t kind) const {
  Sha256 sum;
  add_text(sum, "tail ");
  add_text(sum, parent);
  sum.add(bytes_of_ids(tokens.first(kTailTokens)));
  return name_of(sum.hex(), kind);
}

// --- writing ---

KvFile KvArchive::file_of(const std::string& parent, size_t kind, uint64_t length,
                          std::span<const int32_t> tokens) const {
  return {
      fingerprint_, parent, static_cast<uint32_t>(kind), length, {tokens.begin(), tokens.end()}};
}

bool KvArchive::worth(const PrefixNode& node, size_t kind) const {
  if (node.tail()) return node.tokens.size() >= kTailTokens;
  if (blocks_.kind(kind).cuttable) return true;
  const PrefixNode* child = node.child;
  const bool ends = child == nullptr || child->sibling != nullptr || child->tail();
  return ends || node.depth % kStateEvery == 0;
}

void KvArchive::write(PrefixNode& node, size_t kind, uint64_t order, bool wait) {
  const bool tail = node.tail();
  const std::string& parent = key_of(*node.parent);
  const std::string name =
      tail ? tail_name(parent, node.tokens, kind) : name_of(key_of(node), kind);
  if (!tail && disk_.holds(name)) return disk_.used({name}, order);
  const size_t at = kv_file_block_at(node.tokens.size());
  std::optional<std::vector<uint8_t>> bytes = disk_.take(at + backend_.stored_bytes(kind), wait);
  if (!bytes) return;
  try {
    const KvFile file =
        file_of(parent, kind, (node.depth - 1) * kBlockTokens + node.tokens.size(), node.tokens);
    backend_.read_block(kind, node.blocks[kind], file.length, std::span(*bytes).subspan(at));
    write_kv_file_head(file, *bytes);
  } catch (...) {
    disk_.give_back(std::move(*bytes));
    throw;
  }
  disk_.put(name, std::move(*bytes), seal_kv_file, order, tail);
}

void KvArchive::keep(PrefixNode& node, size_t kind) noexcept {
  try {
    if (worth(node, kind)) write(node, kind, disk_.next_orders(1), /*wait=*/false);
  } catch (const std::exception&) {
    // The block is computed again.
  }
}

void KvArchive::keep_all(const PrefixTree& tree) {
  size_t count = 0;
  tree.each([&](PrefixNode&) { count += blocks_.kinds(); });
  uint64_t order = disk_.next_orders(count) + count;
  tree.each([&](PrefixNode& node) {
    for (size_t k = 0; k < blocks_.kinds(); ++k) {
      --order;
      if (node.blocks[k] == kNoBlock || !worth(node, k)) continue;
      try {
        write(node, k, order, /*wait=*/true);
      } catch (const Error&) {
        // This block cannot be read; others can.
      }
    }
  });
  disk_.flush();
}

// --- reading ---

bool KvArchive::wanted(const KvRestore& r, size_t depth, size_t kind) const {
  return depth > first_block_needed(blocks_.kind(kind), r.blocks * kBlockTokens);
}

// Returns whether windows and states hold what a sequence of `depth` whole blocks reads.
bool KvArchive::near_blocks_are_there(const KvRestore& r, std::span<PrefixNode* const> path,
                                      size_t depth) const {
  for (size_t k = 0; k < blocks_.kinds(); ++k) {
    const KvKind& kind = blocks_.kind(k);
    if (kind.reach == SIZE_MAX) continue;
    for (size_t d = first_block_needed(kind, depth * kBlockTokens) + 1; d <= depth; ++d)
      if ((d >= path.size() || path[d]->blocks[k] == kNoBlock) &&
          !disk_.find(name_of(r.keys[d], k)))
        return false;
  }
  return true;
}

KvRestore KvArchive::plan(const PrefixTree& tree, PrefixNode* root, std::span<const int32_t> tokens,
                          size_t limit) const {
  KvRestore r;
  r.planned = true;
  tokens = tokens.first(std::min(limit, tokens.size()));
  const std::vector<PrefixNode*> path = tree.path(root, tokens, tokens.size());
  const PrefixTree::Hit hit = tree.look(root, tokens, tokens.size());
  const auto in_memory = [&](size_t depth, size_t kind) {
    return depth < path.size() && path[depth]->blocks[kind] != kNoBlock;
  };
  r.keys.push_back(key_of(*root));
  r.begin = hit.length;
  const auto whole_is_there = [&](size_t depth) {
    for (size_t k = 0; k < blocks_.kinds(); ++k)
      if (blocks_.kind(k).reach == SIZE_MAX && !in_memory(depth, k) &&
          !disk_.find(name_of(r.keys[depth], k)))
        return false;
    return true;
  };
  size_t deepest = 0;
  while (deepest < tokens.size() / kBlockTokens) {
    r.keys.push_back(deepest + 1 < path.size()
                         ? key_of(*path[deepest + 1])
                         : child_key(r.keys.back(), block_tokens(tokens, deepest + 1)));
    if (!whole_is_there(deepest + 1)) break;
    ++deepest;
  }
  const size_t have = hit.node->depth;
  while (deepest > have &&
         (deepest * kBlockTokens <= hit.length || !near_blocks_are_there(r, path, deepest)))
    --deepest;
  r.blocks = std::max(deepest, have);
  for (size_t d = 1; d <= r.blocks; ++d)
    for (size_t k = 0; k < blocks_.kinds(); ++k)
      if (wanted(r, d, k) && !in_memory(d, k)) {
        ++r.files;
        r.bytes += kv_file_bytes(kBlockTokens, backend_.stored_bytes(k));
      }
  const auto rest = tokens.subspan(r.blocks * kBlockTokens);
  bool tail = rest.size() >= kTailTokens && (hit.cut_tokens < kTailTokens || r.blocks > have);
  for (size_t k = 0; tail && k < blocks_.kinds(); ++k)
    tail = disk_.find(tail_name(r.keys[r.blocks], rest, k));
  if (tail) {
    r.tail = kTailTokens;
    r.files += blocks_.kinds();
    for (size_t k = 0; k < blocks_.kinds(); ++k) r.bytes += backend_.stored_bytes(k);
  }
  if (r.files == 0) r.next = r.blocks;
  return r;
}

bool KvArchive::load(const std::string& name, const KvFile& expected, bool prefix, BlockId id,
                     std::vector<int32_t>* found) const {
  const KvFileReader reader = disk_.open(name);
  if (!reader.there()) return false;
  std::array<uint8_t, kv_file_block_at(kBlockTokens)> head;
  const auto begin = std::span(head).first(std::min<uint64_t>(head.size(), reader.size()));
  KvFile file;
  const auto equal = [&] {
    if (!reader.read(0, begin) || !read_kv_file_head(begin, reader.size(), file).empty())
      return false;
    const std::span<const int32_t> ids = file.tokens;
    return file.fingerprint == expected.fingerprint && file.parent == expected.parent &&
           file.kind == expected.kind && file.block_bytes == backend_.stored_bytes(file.kind) &&
           file.length == expected.length + ids.size() && ids.size() >= expected.tokens.size() &&
           (prefix || ids.size() == expected.tokens.size()) &&
           std::equal(expected.tokens.begin(), expected.tokens.end(), ids.begin());
  };
  bool good = equal();
  if (good && found != nullptr) {
    // Tokens differ: the file was written at another time.
    if (!found->empty() && *found != file.tokens) return false;
    *found = file.tokens;
  }
  good = good && backend_.write_block(file.kind, id, file.length, [&](std::span<uint8_t> bytes) {
    return reader.read(kv_file_block_at(file.tokens.size()), bytes) &&
           checksum(bytes) == file.block_sum;
  });
  if (!good) disk_.discard(name);
  return good;
}

bool KvArchive::read(const KvRestore& r, size_t depth, size_t kind, std::span<const int32_t> tokens,
                     BlockId id) const noexcept {
  try {
    const KvFile expected =
        file_of(r.keys[depth - 1], kind, (depth - 1) * kBlockTokens, block_tokens(tokens, depth));
    return load(name_of(r.keys[depth], kind), expected, /*prefix=*/false, id, /*found=*/nullptr);
  } catch (const std::exception&) {
    return false;
  }
}

bool KvArchive::read_tail(const KvRestore& r, size_t kind, std::span<const int32_t> rest,
                          BlockId id, std::vector<int32_t>& found) const noexcept {
  try {
    const KvFile expected =
        file_of(r.keys[r.blocks], kind, r.blocks * kBlockTokens, rest.first(kTailTokens));
    return load(tail_name(r.keys[r.blocks], rest, kind), expected, /*prefix=*/true, id, &found);
  } catch (const std::exception&) {
    return false;
  }
}

void KvArchive::measure(KvRestore& r, size_t files, FunctionRef<void()> reading) const {
  const uint64_t start = disk_.now(), each = r.bytes / std::max<size_t>(1, r.files);
  reading();
  disk_.has_read(each * files, files, disk_.now() - start);
  r.bytes -= std::min<uint64_t>(r.bytes, each * files);
  r.files -= std::min(r.files, files);
}

void KvArchive::expect(const KvRestore& r, size_t depth) const {
  for (size_t d = depth + 1; d <= std::min(r.blocks, depth + kExpected); ++d)
    for (size_t k = 0; k < blocks_.kinds(); ++k)
      if (wanted(r, d, k)) disk_.expect(name_of(r.keys[d], k));
}

void KvArchive::used(const KvRestore& r) const {
  std::vector<std::string> names;
  for (size_t d = r.next; d > 0; --d)
    for (size_t k = 0; k < blocks_.kinds(); ++k)
      if (wanted(r, d, k)) names.push_back(name_of(r.keys[d], k));
  const uint64_t first = disk_.next_orders(names.size());
  disk_.used(std::move(names), first);
}

}  // namespace moebius
