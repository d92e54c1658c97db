// SPDX-License-Identifier: Apache-2.0
// The order in which a GGUF file has the rows of a matrix, and what it does to small tensors, where
// that is not Hugging Face's.
#pragma once
#include <cstdint>

namespace moebius {

// From row `first` on, every outer * inner * width rows are a stretch of their own: row
// (o * inner + i) * width + w of the stretch is stored as its row (i * outer + o) * width + w.
//
//   pairs of a rotated head of d rows      outer 2, inner d / 2, width 1
//   value heads of d rows, r per key head  outer key heads, inner r, width d
//   parts of r rows for each key head      outer parts, inner key heads, width r
struct RowOrder {
  uint32_t first = 0, outer = 1, inner = 1, width = 1;
  uint32_t skip = 0;       // rows before those of the matrix, which belong to another one
  uint64_t row_bytes = 0;  // 0: a row of the matrix; else the units that are ordered are smaller
  explicit operator bool() const { return outer > 1 && inner > 1; }
  // Returns the row of the file that holds a row of the matrix.
  uint64_t stored(uint64_t row) const {
    row += skip;
    if (!*this || row < first) return row;
    const uint64_t stretch = uint64_t{outer} * inner * width, at = (row - first) % stretch;
    const uint64_t head = at / width, o = head / inner, i = head % inner;
    return row - at + (i * outer + o) * width + at % width;
  }
  // Returns the first row behind the stretch that holds a row.
  uint64_t stretch_end(uint64_t row) const {
    const uint64_t stretch = uint64_t{outer} * inner * width;
    return row < first ? first : row - (row + skip - first) % stretch + stretch;
  }
};

// Tells how the converter changes the numbers of a small F32 tensor: adds 1 to a norm's, or stores
// -exp(x) or exp(x) for x.
enum class NumberChange : uint8_t { kNone, kPlusOne, kExponential };

}  // namespace moebius
