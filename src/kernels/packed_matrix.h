// SPDX-License-Identifier: Apache-2.0
// Prepares a matrix for kernels: its Problem, the order of its columns, and (for callers without
// own memory management) an owned packed matrix.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel.h"

namespace moebius {

// Order in which kernels process columns: sorted stably by g_idx, so that groups become contiguous.
struct ColumnOrder {
  std::vector<int32_t> columns;     // packed column i is column columns[i]; empty: identity
  std::vector<int32_t> group_ends;  // empty: groups are regular runs of block_k columns
  const int32_t* columns_or_null() const { return columns.empty() ? nullptr : columns.data(); }
  const int32_t* ends_or_null() const { return group_ends.empty() ? nullptr : group_ends.data(); }
};
// Returns the order. Throws Error if g_idx leaves [0, groups).
ColumnOrder column_order(const QuantMatrix& w);

// Facts about the order of columns that the choice of a kernel depends on.
struct ColumnFacts {
  bool permuted = false, ragged = false;
};

// Returns all facts that the choice of a kernel depends on. Reads g_idx and the phases, but not
// codes and scales, which may be null; if g_idx was not read, `columns` is used instead.
Problem make_problem(const QuantMatrix& w, const ActSpec& act, XType x_type);
Problem make_problem(const QuantMatrix& w, const ActSpec& act, XType x_type, ColumnFacts columns);

// Owned memory aligned to 64 bytes.
struct AlignedDelete {
  void operator()(uint8_t* p) const;
};
using AlignedBytes = std::unique_ptr<uint8_t[], AlignedDelete>;
AlignedBytes aligned_bytes(size_t size);

// One matrix packed for one kernel, with everything that its view refers to. Movable; the view
// stays valid until destruction.
class OwnedPackedMatrix {
 public:
  OwnedPackedMatrix(const Kernel& kernel, const QuantMatrix& w, const ActSpec& act, XType x_type,
                    const ActParams& params = {});
  const Kernel& kernel() const { return *kernel_; }
  const Problem& problem() const { return *problem_; }
  const PackedMatrix& view() const { return view_; }
  // Computes y[M,N] = x * w^T for rows of f32, without bias, on the calling thread with its own
  // buffers.
  void multiply(const float* x, size_t ldx, size_t M, float* y, size_t ldy) const;

 private:
  const Kernel* kernel_;
  std::unique_ptr<Problem> problem_;
  ColumnOrder order_;
  AlignedBytes data_;
  PackedMatrix view_;
};

// Reads rows of dense weights back from a kernel's packed form (Kernel::code_at).
class PackedRows {
 public:
  static bool possible(const Kernel& kernel, const Problem& problem);
  PackedRows(const Kernel& kernel, const Problem& problem);
  void read(const uint8_t* packed, size_t n, float* to) const;  // row n: [K], exact

 private:
  const Kernel* kernel_;
  Problem problem_;
  std::vector<uint32_t> input_at_;  // [K] bytes from the beginning of a row
};

}  // namespace moebius
