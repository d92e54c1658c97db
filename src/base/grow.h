// SPDX-License-Identifier: Apache-2.0
// Resizes buffers that one step after another uses: they only grow. Elements beyond the requested
// size may be leftovers of an earlier step.
#pragma once
#include <cstddef>
#include <vector>

namespace moebius {

template <class T>
void grow(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

}  // namespace moebius
