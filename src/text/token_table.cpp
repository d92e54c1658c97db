// SPDX-License-Identifier: Apache-2.0
// Inserts tokens and grows the table; open addressing with linear probing at no more than 3/4 load.
#include "text/token_table.h"

#include <algorithm>
#include <bit>

namespace moebius {

void TokenTable::reserve(size_t count) {
  entries_.reserve(count);
  rehash(std::bit_ceil(count * 3 / 2 + 16));
}

void TokenTable::rehash(size_t slots) {
  slots_.assign(slots, 0);
  for (size_t e = 0; e < entries_.size(); ++e) {
    size_t i = entries_[e].hash & (slots - 1);
    while (slots_[i] != 0) i = (i + 1) & (slots - 1);
    slots_[i] = static_cast<uint32_t>(e + 1);
  }
}

size_t TokenTable::slot_of(std::string_view text, uint64_t hash) const {
  const size_t mask = slots_.size() - 1;
  size_t i = hash & mask;
  for (; slots_[i] != 0; i = (i + 1) & mask)
    if (const Entry& e = entries_[slots_[i] - 1]; e.hash == hash && token(slots_[i] - 1) == text)
      break;
  return i;
}

bool TokenTable::insert(std::string_view text, int32_t value) {
  if ((entries_.size() + 1) * 4 > slots_.size() * 3)
    rehash(std::max<size_t>(64, slots_.size() * 2));
  const uint64_t hash = hash_bytes(text);
  const size_t i = slot_of(text, hash);
  if (slots_[i] != 0) return false;
  entries_.push_back({hash, bytes_.size(), static_cast<uint32_t>(text.size()), value});
  bytes_ += text;
  slots_[i] = static_cast<uint32_t>(entries_.size());
  return true;
}

size_t TokenTable::reassign(std::string_view text, int32_t value) {
  const size_t index = slots_[slot_of(text, hash_bytes(text))] - 1;
  entries_[index].id = value;
  return index;
}

int32_t TokenTable::find(std::string_view text) const {
  if (slots_.empty()) return -1;
  const size_t i = slot_of(text, hash_bytes(text));
  return slots_[i] == 0 ? -1 : entries_[slots_[i] - 1].id;
}

void MergeTable::reserve(size_t count) {
  // Entries move in the order of their hashes, which fill a smaller table from one end.
  const auto log2 = static_cast<unsigned>(std::bit_width(count * 3 / 2 + 16));
  if (slots_.size() >> log2 == 0) rehash(log2);
}

void MergeTable::rehash(unsigned log2) {
  std::vector<Slot> old(size_t{1} << log2);
  old.swap(slots_);
  mask_ = slots_.size() - 1;
  shift_ = 64 - log2;
  used_ = 0;
  for (const Slot& s : old)
    if (s.key != kFree)
      set(static_cast<int32_t>(s.key >> 32), static_cast<int32_t>(s.key & 0xffffffffu), s.merge);
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  if ((used_ + 1) * 4 > slots_.size() * 3) rehash(slots_.empty() ? 6 : 65 - shift_);
  const uint64_t key = key_of(left, right);
  size_t i = (key * 0x9e3779b97f4a7c15u) >> shift_;
  while (slots_[i].key != kFree && slots_[i].key != key) i = (i + 1) & mask_;
  if (slots_[i].key == kFree) ++used_;
  slots_[i] = {key, merge};
}

void PieceCache::clear() {
  slots_.clear();
  keys_.clear();
  ids_.clear();
  used_ = 0;
}

bool PieceCache::find(std::string_view piece, uint64_t hash, std::span<const int32_t>& ids) const {
  if (slots_.empty()) return false;
  for (size_t i = hash & (kSlots - 1); slots_[i].key_length != 0; i = (i + 1) & (kSlots - 1)) {
    const Slot& s = slots_[i];
    if (s.hash != hash || s.key_length != piece.size() ||
        std::memcmp(keys_.data() + s.key, piece.data(), piece.size()) != 0)
      continue;
    ids = std::span(ids_).subspan(s.ids, s.count);
    return true;
  }
  return false;
}

void PieceCache::store(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
  if (piece.empty() || piece.size() > kMaxPiece || ids.size() > 2 * kMaxPiece) return;
  if (used_ * 2 > kSlots) clear();
  if (slots_.empty()) slots_.assign(kSlots, Slot{0, 0, 0, 0, 0});
  size_t i = hash & (kSlots - 1);
  while (slots_[i].key_length != 0) i = (i + 1) & (kSlots - 1);
  const Slot slot{hash, static_cast<uint32_t>(keys_.size()), static_cast<uint32_t>(ids_.size()),
                  static_cast<uint16_t>(piece.size()), static_cast<uint16_t>(ids.size())};
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  keys_ += piece;
  slots_[i] = slot;  // set last, when the entry exists
  ++used_;
}

}  // namespace moebius
