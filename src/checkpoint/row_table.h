// SPDX-License-Identifier: Apache-2.0
// Reads rows of a table that stays in its files because it is larger than memory: consecutive
// tensors with rows of the same width. Callers call check() before they use what they read, because
// files may change.
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
  // Opens `stem`.weight, or all of `stem`.shard_0.weight, ...; 8-bit floats have
  // `stem`.weight_scale, or one scale per shard. Throws Error that names a tensor which does not
  // fit.
  RowTable(const TensorStore& store, const std::string& stem, size_t width);
  uint64_t rows() const { return rows_; }
  size_t width() const { return width_; }

  void will_need(uint64_t row) const;
  // Reads one row to out[width()]. Thread-safe. Throws Error if the row cannot be read.
  void read(uint64_t row, float* out) const;
  // Throws Error if a file that holds one of these rows was changed.
  void check(std::span<const int64_t> rows) const;

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
