// SPDX-License-Identifier: Apache-2.0
// The tokens that may come next: a short list, or a bit for each of the vocabulary.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moebius {

struct TokenMask {
  bool listed = true;
  std::vector<int32_t> ids;    // listed: ascending
  std::vector<uint64_t> bits;  // else: of all tokens, from the lowest bit on
  size_t count = 0;            // of tokens that may come

  bool has(int32_t token) const {
    if (!listed) {
      const auto t = static_cast<size_t>(token);
      return t / 64 < bits.size() && ((bits[t / 64] >> (t % 64)) & 1) != 0;
    }
    for (const int32_t id : ids)
      if (id == token) return true;
    return false;
  }
};

}  // namespace moebius
