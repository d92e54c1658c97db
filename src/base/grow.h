// SPDX-License-Identifier: Apache-2.0
// Buffers that steps use again: they only grow, and what lies behind the asked size is of an earlier
// step.
#pragma once
#include <cstddef>
#include <vector>

namespace moebius {

template <class T>
void grow(std::vector<T>& v, size_t n) {
  if (v.size() < n) v.resize(n);
}

}  // namespace moebius
