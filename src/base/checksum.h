// SPDX-License-Identifier: Apache-2.0
// A checksum of bytes in memory, as fast as they are read: whether a file of our own is as it was
// written. A change within one word of 8 bytes always changes it; it is no defence against who means
// to deceive.
#pragma once
#include <cstdint>
#include <cstring>
#include <span>

namespace moebius {

inline uint64_t checksum(std::span<const uint8_t> bytes) noexcept {
  constexpr uint64_t kOdd = 0x9e3779b97f4a7c15u;
  // Each round is a bijection of the state for a given word, and of the word for a given state.
  const auto round = [](uint64_t state, uint64_t word) {
    state = (state ^ word) * kOdd;
    return state ^ (state >> 32);
  };
  const auto word_at = [&](size_t at) {
    uint64_t w = 0;
    std::memcpy(&w, bytes.data() + at, sizeof(w));
    return w;
  };
  uint64_t a = 1, b = 2, c = 3, d = 4;  // chains that a core runs side by side
  size_t at = 0;
  for (; at + 32 <= bytes.size(); at += 32) {
    a = round(a, word_at(at));
    b = round(b, word_at(at + 8));
    c = round(c, word_at(at + 16));
    d = round(d, word_at(at + 24));
  }
  uint64_t all = round(round(round(round(bytes.size(), a), b), c), d);
  for (; at + 8 <= bytes.size(); at += 8) all = round(all, word_at(at));
  uint64_t rest = 0;
  for (size_t i = 0; at + i < bytes.size(); ++i) rest |= uint64_t{bytes[at + i]} << (8 * i);
  return round(all, rest);
}

}  // namespace moebius
