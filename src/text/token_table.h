// SPDX-License-Identifier: Apache-2.0
// Three hash tables without deletion: strings to ids, pairs of ids to merges, and pieces to token
// ids (a cache that forgets everything when it is full). Lookups do not allocate.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace moebius {

inline uint64_t hash_bytes(std::string_view s) {
  constexpr uint64_t k = 0x9e3779b97f4a7c15u;
  uint64_t h = s.size() * k;
  const auto mix = [&](uint64_t v) {
    h = (h ^ v) * k;
    h ^= h >> 29;
  };
  while (s.size() >= 8) {
    uint64_t v;
    std::memcpy(&v, s.data(), 8);
    mix(v);
    s.remove_prefix(8);
  }
  uint64_t v = 0;
  std::memcpy(&v, s.data(), s.size());
  mix(v);
  return h ^ (h >> 32);
}

// Holds distinct strings with their ids; copies the strings into one block.
class TokenTable {
 public:
  void reserve(size_t count);
  // Returns false and stores nothing if the string exists already.
  bool insert(std::string_view token, int32_t id);
  // Gives an existing string another id; returns its index.
  size_t reassign(std::string_view token, int32_t id);
  int32_t find(std::string_view token) const;  // returns the id of a string; -1: not found
  size_t size() const { return entries_.size(); }
  // Returns the string that was inserted i-th, and its id.
  std::string_view token(size_t i) const {
    return std::string_view(bytes_).substr(entries_[i].offset, entries_[i].length);
  }
  int32_t id(size_t i) const { return entries_[i].id; }

 private:
  struct Entry {
    uint64_t hash;
    uint64_t offset;
    uint32_t length;
    int32_t id;
  };
  void rehash(size_t slots);
  size_t slot_of(std::string_view token, uint64_t hash) const;
  std::string bytes_;
  std::vector<Entry> entries_;
  std::vector<uint32_t> slots_;  // hash table of indices + 1, 0: free; its size is a power of two
};

class MergeTable {
 public:
  struct Merge {
    uint32_t rank = UINT32_MAX;  // UINT32_MAX: the pair does not merge
    int32_t id = -1;
  };
  void reserve(size_t count);
  void set(int32_t left, int32_t right, Merge merge);  // replaces an existing merge
  Merge find(int32_t left, int32_t right) const {
    if (slots_.empty()) return {};
    const uint64_t key = key_of(left, right);
    for (size_t i = (key * 0x9e3779b97f4a7c15u) >> shift_;; i = (i + 1) & mask_) {
      if (slots_[i].key == key) return slots_[i].merge;
      if (slots_[i].key == kFree) return {};
    }
  }
  size_t size() const { return used_; }

 private:
  static constexpr uint64_t kFree = UINT64_MAX;
  static uint64_t key_of(int32_t left, int32_t right) {
    return (static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32) |
           static_cast<uint32_t>(right);
  }
  struct Slot {
    uint64_t key = kFree;
    Merge merge;
  };
  void rehash(unsigned log2);
  std::vector<Slot> slots_;
  size_t mask_ = 0, used_ = 0;
  unsigned shift_ = 64;
};

class PieceCache {
 public:
  static constexpr size_t kMaxPiece = 128;  // longer pieces are not stored
  // Finds the ids stored for `piece`. The span is valid until the next store().
  bool find(std::string_view piece, uint64_t hash, std::span<const int32_t>& ids) const;
  void store(std::string_view piece, uint64_t hash, std::span<const int32_t> ids);
  void clear();

 private:
  static constexpr size_t kSlots = 1u << 16;
  struct Slot {
    uint64_t hash;
    uint32_t key, ids;
    uint16_t key_length, count;  // key_length 0: free
  };
  std::vector<Slot> slots_;
  std::string keys_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

}  // namespace moebius
