// SPDX-License-Identifier: Apache-2.0
// Prepares a matrix for kernels: its Problem, the order of its columns, and (for callers without
// own memory management) an owned packed matrix.
#pragma once
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/kernel.h"

namespace moebius {

// Order in which a kernel processes the columns of a matrix: sorted stably by g_idx (the group of
// each column), so that groups become contiguous.
struct ColumnOrder {
  std::vector<int32_t> columns;  // packed column i is column columns[i]; empty: identity
  // end of each group in this order; empty: groups are runs of block_k columns
  std::vector<int32_t> group_ends;
  const int32_t* columns_or_null() const { return columns.empty() ? nullptr : columns.data(); }
  const int32_t* ends_or_null() const { return group_ends.empty() ? nullptr : group_ends.data(); }
};
// Returns the order for w. Throws Error if an entry of g_idx is outside of [0, groups).
ColumnOrder column_order(const QuantMatrix& w);

// Facts about the order of columns on which the choice of a kernel depends: see Problem::act_order
// and Problem::ragged.
struct ColumnFacts {
  bool permuted = false, ragged = false;
};

// Return the problem of multiplying by w. Codes and scales are not read and may be null; g_idx and
// the phases are, unless `columns` gives what they would say.
Problem make_problem(const QuantMatrix& w, const ActSpec& act, XType x_type);
Problem make_problem(const QuantMatrix& w, const ActSpec& act, XType x_type, ColumnFacts columns);

// Memory aligned to 64 bytes, with its owner.
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
  // Returns true if the kernel stores such weights so that they can be read back.
  static bool possible(const Kernel& kernel, const Problem& problem);
  PackedRows(const Kernel& kernel, const Problem& problem);
  // Writes row n, [K], without rounding.
  void read(const uint8_t* packed, size_t n, float* to) const;

 private:
  const Kernel* kernel_;
  Problem problem_;
  // [K] offset of each input from the beginning of its row, in bytes
  std::vector<uint32_t> input_at_;
};

}  // namespace moebius
