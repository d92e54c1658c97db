// SPDX-License-Identifier: Apache-2.0
// From a canonical matrix to what kernels want: the Problem, the order of columns, and (for whoever
// does not manage memory itself) an owned packed matrix.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel.h"

namespace moebius {

// The order in which kernels see the columns. Groups become contiguous: columns are sorted stably
// by g_idx.
struct ColumnOrder {
  std::vector<int32_t> columns;     // empty: identity
  std::vector<int32_t> group_ends;  // empty: groups are the regular runs of block_k columns
  const int32_t* columns_or_null() const { return columns.empty() ? nullptr : columns.data(); }
  const int32_t* ends_or_null() const { return group_ends.empty() ? nullptr : group_ends.data(); }
};
// Throws Error if g_idx leaves [0, groups).
ColumnOrder column_order(const QuantMatrix& w);

// What the order of columns means to selection.
struct ColumnFacts {
  bool permuted = false, ragged = false;
};

// All that selection may look at. Looks at g_idx and the phases, not at codes and scales, which may
// be null; or, where g_idx was not read, takes the word of `columns`.
Problem make_problem(const QuantMatrix& w, const ActSpec& act, XType x_type);
Problem make_problem(const QuantMatrix& w, const ActSpec& act, XType x_type, ColumnFacts columns);

// 64-byte aligned memory.
struct AlignedDelete {
  void operator()(uint8_t* p) const;
};
using AlignedBytes = std::unique_ptr<uint8_t[], AlignedDelete>;
AlignedBytes aligned_bytes(size_t size);

// One matrix packed for one kernel, with everything its view points to. Movable; views stay valid
// until destruction.
class OwnedPackedMatrix {
 public:
  OwnedPackedMatrix(const Kernel& kernel, const QuantMatrix& w, const ActSpec& act, XType x_type,
                    const ActParams& params = {});
  const Kernel& kernel() const { return *kernel_; }
  const Problem& problem() const { return *problem_; }
  const PackedMatrix& view() const { return view_; }
  // y[M,N] = x * w^T for rows of f32, without bias: prepare, panel and gemm with buffers of its
  // own, one thread.
  void multiply(const float* x, size_t ldx, size_t M, float* y, size_t ldy) const;

 private:
  const Kernel* kernel_;
  std::unique_ptr<Problem> problem_;
  ColumnOrder order_;
  AlignedBytes data_;
  PackedMatrix view_;
};

// Rows of dense weights, read back from where a kernel keeps them (Kernel::code_at).
class PackedRows {
 public:
  static bool possible(const Kernel& kernel, const Problem& problem);
  PackedRows(const Kernel& kernel, const Problem& problem);
  void read(const uint8_t* packed, size_t n, float* to) const;  // row n: [K], exact

 private:
  const Kernel* kernel_;
  Problem problem_;
  std::vector<uint32_t> input_at_;  // [K] bytes behind the begin of a row
};

}  // namespace moebius
