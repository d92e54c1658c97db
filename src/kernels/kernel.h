// SPDX-License-Identifier: Apache-2.0
// WAIST 2. A kernel is a plain record: facts that selection looks at, and functions that fill a
// block of y[M,N] = x[M,K] * w[N,K]^T. Everything that knows an instruction set sits behind it.
// Kernels get no threads, no allocator, no choice. Plain data only: this header is included by
// units compiled for any instruction set, so it defines no function.
//
//   load:  pack(QuantMatrix) -> packed bytes          once per matrix, any rows in parallel
//   run:   prepare_rows(x f32) -> prepared rows       once per token (and distinct static scale)
//          make_panel(prepared rows, ids) -> panel    once per group of rows that meet one matrix
//          gemm(packed, panel, block of N) -> y f32   any blocks in parallel
//
// Prepared rows are stored at a stride of row_bytes, each row self-contained (codes and scales), so
// rows may be prepared by any thread and picked by id. A panel holds the M picked rows in the
// kernel's own tile order.
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

// What is computed, free of pointers: all that `supports` and the oracle may look at.
struct Problem {
  size_t N = 0, K = 0;
  CodeType code = CodeType::kF32;
  uint8_t bits = 32;
  ScaleType scale_type = ScaleType::kNone;
  size_t groups = 1, block_n = 1, block_k = 1;
  bool zero_points = false;
  bool act_order =
      false;            // columns are permuted so that groups become contiguous: `columns` is given
  bool ragged = false;  // groups are not the regular pieces of block_k columns (slices of K):
                        // `group_ends` is given
  ActSpec act;
  XType x_type = XType::kF32;
};

struct PackArgs {
  const Problem* problem;
  const QuantMatrix* w;
  size_t n0, n1;    // rows of w to pack; n0 is a multiple of Kernel::n_step
  uint8_t* packed;  // whole matrix; the call fills what belongs to its rows
  const int32_t* columns =
      nullptr;  // act-order: packed column i is column columns[i] of w; null: identity
  const int32_t* group_ends = nullptr;  // act-order: as in PackedMatrix
  size_t row0 =
      0;  // row of the whole matrix at which w begins, when w is a piece of it; a multiple of Kernel::n_step
  size_t
      changed_from = 0,
      changed_to =
          SIZE_MAX;  // inputs that differ from what is packed already: others may be left as they are
};

// A packed matrix with the values that are not part of the tiles.
struct PackedMatrix {
  const Problem* problem = nullptr;
  const uint8_t* data = nullptr;
  float global_scale = 1.0f;  // of the weights (divisor)
  ActParams act;              // of the input
  const int32_t* columns =
      nullptr;  // act-order: panel column i is column columns[i] of x; null: identity
  const int32_t* group_ends = nullptr;  // ragged: end of group g in (permuted) column order
                                        // [groups], groups may be empty; null: regular
};

struct PrepareArgs {
  const Problem* problem;
  const ActParams* act;
  const float* x;  // [M,K]; rows that are not quantized (ActCode::kAsIs) are rounded to x_type here
  size_t ldx, M;
  uint8_t* rows;  // [M] at a stride of row_bytes
};

struct PanelArgs {
  const Problem* problem;
  const PackedMatrix* w;  // for its column order
  const uint8_t* rows;
  const int32_t* ids;  // [M] indices of prepared rows; null: 0..M-1
  size_t M;
  uint8_t* panel;  // panel_bytes(problem, M)
};

struct GemmArgs {
  const PackedMatrix* w;
  const uint8_t* panel;
  size_t M, n0, n1;  // n0 a multiple of n_step; n1 too, or N
  float* y;          // [M, n1 - n0], row stride ldy; without bias
  size_t ldy;
  uint8_t* scratch;  // scratch_bytes(problem, M), 64-byte aligned, private to the caller
};

struct Kernel {
  const char* name;                         // "arm_i8mm"
  const char* codec;                        // how weights are held: "int4", "int8", "bf16" ...
  Arch arch;                                // kOther: runs everywhere
  uint32_t needs;                           // CpuFeature bits
  size_t n_step;                            // output columns per tile
  const char* (*supports)(const Problem&);  // null, or the reason why not
  Numerics (*numerics)(const Problem&);
  size_t (*packed_bytes)(const Problem&);
  void (*pack)(const PackArgs&);
  size_t (*row_bytes)(const Problem&);
  void (*prepare_rows)(const PrepareArgs&);
  size_t (*panel_bytes)(const Problem&, size_t M);
  void (*make_panel)(const PanelArgs&);
  size_t (*scratch_bytes)(const Problem&, size_t M);
  void (*gemm)(const GemmArgs&);
  // Null, or why it is taken only when it is requested by name; the tests judge it like any other.
  const char* on_request = nullptr;
};

// What a kernel file exports: one constant table (kernels/list.h says how).
struct KernelTable {
  const Kernel* kernels;
  size_t count;
};

}  // namespace moebius
