// SPDX-License-Identifier: Apache-2.0
// Cuts slices of a matrix for tensor parallelism: rows [r0, r1) (column-parallel layers), columns
// [c0, c1) (row-parallel layers), or both. A slice is a view of the same bytes if it starts at a
// byte boundary; only nibbles that start at an odd column are copied. n_phase and k_phase keep the
// scales aligned, so a slice need not start at a group or block boundary. With an act-order index a
// slice of columns keeps the scales of all groups and its part of g_idx. A view without codes and
// scales is cut the same way.
#pragma once
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "quant/quant_matrix.h"

namespace moebius {

// Owns the bytes that slices had to copy; must outlive them.
class SliceMemory {
 public:
  uint8_t* allocate(size_t bytes);
  size_t bytes() const { return bytes_; }

 private:
  std::vector<std::unique_ptr<uint8_t[]>> blocks_;
  size_t bytes_ = 0;
};

// Returns rows [r0, r1) and columns [c0, c1) of w; `memory` holds bytes that had to be copied.
// Throws Error unless r0 < r1 <= N and c0 < c1 <= K.
QuantMatrix slice(const QuantMatrix& w, size_t r0, size_t r1, size_t c0, size_t c1,
                  SliceMemory& memory);
QuantMatrix slice_rows(const QuantMatrix& w, size_t r0, size_t r1);
QuantMatrix slice_columns(const QuantMatrix& w, size_t c0, size_t c1, SliceMemory& memory);

// A range of outputs, heads or layers: [begin, end).
struct Range {
  size_t begin = 0, end = 0;
  size_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

// Returns the outputs that rank `rank` of `ranks` computes of a matrix with N outputs, when the
// ranks' outputs are concatenated. Ranges are multiples of 16 if every rank then has some, and
// never empty. Throws Error naming `what` if there are fewer outputs than ranks.
Range output_range(size_t N, size_t ranks, size_t rank, std::string_view what);
std::vector<Range> output_ranges(size_t N, size_t ranks, std::string_view what);

// Returns part `rank` of `ranks` equal parts of `size`, as [begin, end). Throws Error naming `what`
// if `size` is not divisible.
std::pair<size_t, size_t> parallel_range(size_t size, size_t rank, size_t ranks, const char* what);

}  // namespace moebius
