// SPDX-License-Identifier: Apache-2.0
// WAIST 2. A kernel is a plain record: facts that selection looks at, and functions that fill a
// block of y[M,N] = x[M,K] * w[N,K]^T. Everything that knows an instruction set sits behind it.
// Kernels get no threads, no allocator, no choice. Plain data only: this header is included by
// units compiled for any instruction set, so it defines no function.
//
//   load:  pack(QuantMatrix) -> packed bytes          once per matrix, any rows in parallel
//          code_at(n, k)                              where one element of it lies
//   run:   prepare_rows(x f32) -> prepared rows       once per token (and distinct static scale)
//          make_row_panel(prepared rows, ids) -> panel    once per group of rows that meet one matrix
//          gemm(packed, panel, block of N) -> y f32   any blocks in parallel
//
// Prepared rows are stored at a stride of row_bytes, each row self-contained (codes and scales), so
// rows may be prepared by any thread and picked by id. A panel holds the M picked rows in the
// kernel's own tile order.
//
// Alignment. Memory that a kernel lays out itself begins at a multiple of 64 bytes: packed, data,
// panel, scratch, and row 0 of prepared rows (row i lies i * row_bytes behind it). Memory that
// others lay out has the alignment of its elements: x, y, ids, columns, group_ends; the codes and
// scales of a QuantMatrix have none at all. The fields below repeat it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/activation.h"
#include "quant/quant_matrix.h"
#include "runtime/cpu.h"

namespace moebius {

enum class Numerics : uint8_t {
  kExact,        // bytes equal to the reference
  kReordered,    // same operations in another fixed order: bounded error
  kApproximate,  // other arithmetic than declared: only on request
};

// What is computed, free of pointers: all that `supports` and the oracle may look at. Made by
// make_problem (packed_matrix.h) and nowhere else.
struct Problem {
  size_t N = 0, K = 0;
  CodeType code = CodeType::kF32;
  uint8_t bits = 32;
  ScaleType scale_type = ScaleType::kNone;
  size_t groups = 1, block_n = 1, block_k = 1;
  bool zero_points = false;
  bool offsets = false;  // a float per group beside the scales
  // Columns are permuted so that groups become contiguous: `columns` is given.
  bool act_order = false;
  // Groups are not the regular blocks of block_k columns (slices of K): `group_ends` is given.
  bool ragged = false;
  ActSpec act;
  XType x_type = XType::kF32;
  bool operator==(const Problem&) const = default;
};

struct PackArgs {
  const Problem* problem;
  const QuantMatrix* w;  // its codes and scales: any alignment
  size_t n0, n1;         // rows of w to pack; n0 is a multiple of Kernel::n_step
  uint8_t* packed;       // 64; the whole matrix: the call fills what belongs to its rows
  // 4; act-order: packed column i is column columns[i] of w; null: identity
  const int32_t* columns = nullptr;
  const int32_t* group_ends = nullptr;  // 4; as in PackedMatrix
  // Row of the whole matrix at which w begins, when w is a block of its rows; a multiple of n_step.
  size_t row0 = 0;
};

// A packed matrix with the values that are not part of the tiles.
struct PackedMatrix {
  const Problem* problem = nullptr;
  const uint8_t* data = nullptr;  // 64
  GlobalScale global_scale;       // of the weights
  ActParams act;                  // of the input
  // 4; act-order: panel column i is column columns[i] of x; null: identity
  const int32_t* columns = nullptr;
  // 4; ragged: end of group g in (permuted) column order [groups], groups may be empty; null:
  // regular
  const int32_t* group_ends = nullptr;
};

// The global scale that finishes the sums of a matrix: its own, with the input's where that has one.
MOEBIUS_ALWAYS_INLINE GlobalScale result_scale(const PackedMatrix& w) {
  const ActSpec& act = w.problem->act;
  const bool two_level = act.code == ActCode::kFp4 && act.scale == ActScale::kFp8;
  return two_level ? both_scales(w.act.global_scale, w.global_scale) : w.global_scale;
}

struct PrepareArgs {
  const Problem* problem;
  const ActParams* act;
  // 4; [M,K]; rows that are not quantized (ActCode::kAsIs) are rounded to x_type here
  const float* x;
  size_t ldx, M;
  uint8_t* rows;  // [M] at a stride of row_bytes; a multiple of row_bytes behind a multiple of 64
};

struct RowPanelArgs {
  const Problem* problem;
  const PackedMatrix* w;  // for its column order
  const uint8_t* rows;    // 64; row 0
  const int32_t* ids;     // 4; [M] indices of prepared rows; null: 0..M-1
  size_t M;
  uint8_t* panel;  // 64; row_panel_bytes(problem, M)
};

struct GemmArgs {
  const PackedMatrix* w;
  const uint8_t* panel;  // 64
  size_t M, n0, n1;      // n0 a multiple of n_step; n1 too, or N
  float* y;              // 4; [M, n1 - n0], row stride ldy; without bias
  size_t ldy;
  uint8_t* scratch;  // 64; scratch_bytes(problem, M), private to the caller
  // A hint: the caller reads this one next, from n0 on too, by the same kernel.
  const PackedMatrix* next = nullptr;
};

struct Kernel {
  const char* name;                         // "arm_i8mm"
  const char* codec;                        // how weights are held: "int4", "int8", "bf16" ...
  Arch arch;                                // kOther: runs everywhere
  uint32_t needs;                           // CpuFeature bits
  size_t n_step;                            // output columns per tile
  const char* (*supports)(const Problem&);  // null, or the reason why not
  Numerics (*numerics)(const Problem&);
  size_t (*packed_bytes)(const Problem&);  // sizes: of no outputs (N) and no rows (M) too
  void (*pack)(const PackArgs&);
  size_t (*row_bytes)(const Problem&);
  void (*prepare_rows)(const PrepareArgs&);
  size_t (*row_panel_bytes)(const Problem&, size_t M);
  void (*make_row_panel)(const RowPanelArgs&);
  size_t (*scratch_bytes)(const Problem&,
                          size_t M);  // enough for fewer rows too; so row_panel_bytes
  void (*gemm)(const GemmArgs&);
  // What a call does best with; callers follow it where they have so many, and must not rely on it.
  // Outputs: a multiple of n_step and of every width of tile, so that no call ends with a narrower
  // one (0: n_step). Rows: what a call's M should be a multiple of when rows are cut into batches.
  size_t n_tile = 0, m_tile = 8;
  // Where the code of element (n, k) lies in packed, in bytes: of dense weights, as it was given; of
  // 8-bit codes with one scale per row, as some byte that is a function of the code. No column
  // order. The sum of something that depends on n and something that depends on k, so that callers
  // keep two tables: how blocks of keys and values grow a token at a time. Null: it takes no such
  // weights with activations that are not quantized.
  size_t (*code_at)(const Problem&, size_t n, size_t k) = nullptr;
};

// What a kernel file exports: one constant table (kernels/list.h says how).
struct KernelTable {
  const Kernel* kernels;
  size_t count;
};

}  // namespace moebius
