// SPDX-License-Identifier: Apache-2.0
// The order in which a GGUF file has the rows of a matrix, where that is not Hugging Face's.
#pragma once
#include <cstdint>

namespace moebius {

// From row `first` on, every outer * inner * width rows are a stretch of their own: row
// (o * inner + i) * width + w of the stretch is stored as its row (i * outer + o) * width + w.
//
//   pairs of a rotated head of d rows      outer 2, inner d / 2, width 1
//   value heads of d rows, r per key head  outer key heads, inner r, width d
struct RowOrder {
  uint32_t first = 0, outer = 1, inner = 1, width = 1;
  explicit operator bool() const { return outer > 1 && inner > 1; }
  // Returns the row of the file that holds a row of the matrix.
  uint64_t stored(uint64_t row) const {
    if (row < first) return row;
    const uint64_t stretch = uint64_t{outer} * inner * width, at = (row - first) % stretch;
    const uint64_t head = at / width, o = head / inner, i = head % inner;
    return row - at + (i * outer + o) * width + at % width;
  }
  // Returns the first row behind the stretch that holds a row.
  uint64_t stretch_end(uint64_t row) const {
    const uint64_t stretch = uint64_t{outer} * inner * width;
    return row < first ? first : row - (row - first) % stretch + stretch;
  }
};

}  // namespace moebius
