// SPDX-License-Identifier: Apache-2.0
// Holds the set of tokens that may come next in an answer: as a short list, or as one bit per token
// of the vocabulary.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

namespace moebius {

struct TokenMask {
  bool listed = true;
  std::vector<int32_t> ids;    // the tokens in ascending order, if the set is a list
  std::vector<uint64_t> bits;  // the tokens otherwise: bit t % 64 of word t / 64 for token t
  size_t count = 0;            // number of tokens in the set

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
