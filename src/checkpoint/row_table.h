// SPDX-License-Identifier: Apache-2.0
// A table of rows that stays in its files, because it is larger than memory: tensors one behind the other,
// each some rows of the same width. Rows are read at positions; whoever uses what was read asks first
// whether the files are still those that were opened (check).
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "checkpoint/tensor_store.h"

namespace moebius {

class RowTable {
 public:
  // `stem`.weight, or all of `stem`.shard_0.weight, ...; 8-bit floats with `stem`.weight_scale, or one of
  // each shard. Throws Error naming a tensor that does not fit.
  RowTable(const TensorStore& store, const std::string& stem, size_t width);
  uint64_t rows() const { return rows_; }
  size_t width() const { return width_; }

  void will_need(uint64_t row) const;
  // A row of `rows`; thread-safe. Throws Error.
  void read(uint64_t row, float* out) const;
  void check(
      std::span<const int64_t> rows) const;  // throws Error where a file of these was changed

 private:
  struct Shard {
    uint64_t first, offset;
    size_t file;
    DType type;
    float scale;
  };
  const Shard& shard_of(uint64_t row) const;
  size_t row_bytes(const Shard& s) const;
  size_t width_;
  uint64_t rows_ = 0;
  std::vector<Shard> shards_;
  std::vector<std::shared_ptr<const ReadFile>> files_;
};

}  // namespace moebius
