// SPDX-License-Identifier: Apache-2.0
// Stores many rows of numbers of one type, in memory or in a file without a name that disappears
// with the process.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/descriptor.h"
#include "quant/activation.h"

namespace moebius {

class RowStore {
 public:
  // cols: numbers per row. scratch: folder of the file; "": rows are in memory.
  RowStore(size_t cols, XType type, const std::string& scratch);

  size_t rows() const { return rows_; }
  size_t cols() const { return cols_; }
  static uint64_t bytes_of(uint64_t rows, uint64_t cols, XType type);
  void reserve(size_t rows);  // allocates memory for so many rows at once
  // Appends rows; row r is at x + r * stride. Numbers are rounded to the type.
  void append(const float* x, size_t rows, size_t stride);
  // Overwrites rows that exist, from `first` on.
  void write(size_t first, const float* x, size_t rows);
  // Copies rows [first, first + rows) to `out`; thread-safe.
  void read(size_t first, size_t rows, float* out) const;

 private:
  void put(uint64_t offset, const std::vector<uint8_t>& bytes);
  size_t cols_, row_bytes_, rows_ = 0;
  XType type_;
  std::string scratch_;
  Descriptor file_;  // not open: rows are in memory
  std::vector<uint8_t> memory_;
};

}  // namespace moebius
