// SPDX-License-Identifier: Apache-2.0
// The generator of mixed text (code, many scripts, emoji, marks, white space, invalid bytes) that
// tests/python/text_pools.py also holds: both give the same bytes for the same seed and index.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/random.h"

namespace moebius::test {

class TextRng {
 public:
  explicit TextRng(uint64_t seed) : random_(seed) {}
  uint64_t next(uint64_t n) { return random_.next() % n; }

 private:
  SplitMix64 random_;
};

class MixedText {
 public:
  MixedText();  // reads build/data/golden-text/tokenizers/pools.json
  std::string line(uint64_t seed, uint64_t index) const;

 private:
  std::vector<std::string> fragments_, specials_;
  std::vector<std::pair<uint32_t, uint32_t>> ranges_;
};

uint32_t crc32(std::string_view bytes, uint32_t crc = 0);  // zlib's

}  // namespace moebius::test
