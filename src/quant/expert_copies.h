// SPDX-License-Identifier: Apache-2.0
// Copies of busy experts: which one serves a token. Every rank finds the same without asking.
#pragma once
#include <cstdint>

namespace moebius {

// Which of `replicas` copies serves a token.
inline uint32_t replica_of_token(uint32_t token_index, uint32_t replicas) {
  return token_index * 2654435769u % replicas;  // the product wraps at 2^32 on purpose
}

}  // namespace moebius
