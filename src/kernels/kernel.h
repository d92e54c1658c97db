// SPDX-License-Identifier: Apache-2.0
// WAIST 2 (ARCHITECTURE.md): the interface of kernels, the code that is written for one instruction
// set. A kernel is a plain record: facts by which it is chosen (kernels/oracle.h), and functions
// that compute blocks of y[M,N] = x[M,K] * w[N,K]^T for M rows of activations and N outputs. The
// functions are pure: they start no threads, allocate nothing, cannot fail, and may be called from
// any thread at once as long as they write different memory. Plain data only: this header is
// included by units compiled for any instruction set.
//
//   load:  pack(QuantMatrix) -> packed bytes          once per matrix, any rows in parallel
//          code_at(n, k)                              offset of one element in packed bytes
//   run:   prepare_rows(x f32) -> prepared rows       once per token (and distinct static scale)
//          make_row_panel(prepared rows, ids) -> panel    once per group of rows for one matrix
//          gemm(packed, panel, block of N) -> y f32   any blocks in parallel
//
// prepare_rows quantizes rows of x as the problem says, by a scale computed from the row (dynamic)
// or stored in the checkpoint (static). Prepared rows are stored at a stride of row_bytes, each row
// with its codes and scales, so that any thread may prepare them and experts may pick them by id. A
// row panel holds the M picked rows in the kernel's own tile order; its layout is private to the
// kernel.
//
// Alignment. Memory that a kernel lays out begins at a multiple of 64 bytes: packed, data, panel,
// scratch, and row 0 of prepared rows (row i begins i * row_bytes after it). Memory that others lay
// out is aligned for its elements: x, y, ids, columns, group_ends; codes and scales of a
// QuantMatrix have any alignment. The fields below repeat it.
#pragma once
#include <cstddef>
#include <cstdint>

#include "quant/activation.h"
#include "quant/quant_matrix.h"
#include "runtime/cpu.h"

namespace moebius {

// Says how a kernel's results differ from those of the reference (quant/reference.h). A kernel runs
// only if the caller accepts the difference (Policy in oracle.h).
enum class Numerics : uint8_t {
  kExact,        // bytes equal to the reference
  kReordered,    // the reference's products, added in another fixed order: within a stated bound
  kApproximate,  // coarser number types than the checkpoint declares: only if the caller asks
};

// Says what is computed, without pointers: whether a kernel supports it, its numerics, its sizes
// and the choice of a kernel depend on nothing else. Made by make_problem (packed_matrix.h) only.
struct Problem {
  // Outputs and inputs of w[N,K].
  size_t N = 0, K = 0;
  CodeType code = CodeType::kF32;
  uint8_t bits = 32;
  Lut lut = Lut::kNone;
  // Scales: one per block of block_n outputs and block_k inputs; `groups` blocks side by side along
  // the inputs.
  ScaleType scale_type = ScaleType::kNone;
  size_t groups = 1, block_n = 1, block_k = 1;
  // Group g belongs to super-block (g + super_phase) / super_groups of scales in two levels.
  size_t super_groups = 1, super_phase = 0;
  bool zero_points = false;
  bool offsets = false;  // each group has a float offset in addition to its scale
  // true: kernels read columns of w and x in another order (`columns`, given at pack and at run),
  // in which each group is contiguous
  bool act_order = false;
  // true: groups are runs of columns of any length, whose ends `group_ends` gives; false: groups
  // are runs of block_k columns
  bool ragged = false;
  ActSpec act;
  XType x_type = XType::kF32;
  bool operator==(const Problem&) const = default;
};

// Arguments of Kernel::pack, which packs rows [n0, n1) of one weight matrix. Calls for different
// rows may run at the same time.
struct PackArgs {
  const Problem* problem;
  const QuantMatrix* w;  // codes and scales of any alignment
  size_t n0, n1;         // rows of w to pack, [n0, n1); n0 is a multiple of Kernel::n_step
  // Aligned to 64; buffer of the whole matrix, of which the call writes the part of its rows.
  uint8_t* packed;
  // Aligned to 4; act-order: packed column i is column columns[i] of w; null: identity.
  const int32_t* columns = nullptr;
  const int32_t* group_ends = nullptr;  // aligned to 4; as in PackedMatrix
  // Row of the whole matrix at which w begins, if w is a block of its rows; a multiple of n_step.
  size_t row0 = 0;
};

// A packed matrix as kernels read it: its bytes, and the values that stay outside of them. Filled
// at load; views memory of the layer.
struct PackedMatrix {
  const Problem* problem = nullptr;
  const uint8_t* data = nullptr;  // aligned to 64
  GlobalScale global_scale;       // second-level scale of the weights
  ActParams act;                  // static scales of the activations, if the checkpoint has them
  // Aligned to 4; act-order: panel column i is column columns[i] of x; null: identity.
  const int32_t* columns = nullptr;
  // Aligned to 4; ragged groups: end of group g in (permuted) column order, [groups]; groups may be
  // empty; null: regular groups.
  const int32_t* group_ends = nullptr;
};

// Returns the factor that a kernel applies to every sum of the matrix: the global scale of the
// weights, times that of the activations if both have one.
MOEBIUS_ALWAYS_INLINE GlobalScale result_scale(const PackedMatrix& w) {
  const ActSpec& act = w.problem->act;
  const bool two_level = act.code == ActCode::kFp4 && act.scale == ActScale::kFp8;
  return two_level ? both_scales(w.act.global_scale, w.global_scale) : w.global_scale;
}

// Arguments of Kernel::prepare_rows, which quantizes M rows of x into `rows`.
struct PrepareArgs {
  const Problem* problem;
  const ActParams* act;
  // Aligned to 4; [M,K]; rows that are not quantized (ActCode::kAsIs) are rounded to x_type.
  const float* x;
  size_t ldx, M;
  // Receives [M] prepared rows at a stride of row_bytes; address: a multiple of 64, plus a multiple
  // of row_bytes.
  uint8_t* rows;
};

// Arguments of Kernel::make_row_panel, which arranges M prepared rows for gemm.
struct RowPanelArgs {
  const Problem* problem;
  const PackedMatrix* w;  // matrix to multiply with, read for its column order
  const uint8_t* rows;    // aligned to 64; prepared row 0
  const int32_t* ids;     // aligned to 4; [M] indices of prepared rows; null: 0..M-1
  size_t M;
  uint8_t* panel;  // aligned to 64; receives row_panel_bytes(problem, M) bytes
};

// Arguments of Kernel::gemm, which computes outputs [n0, n1) of the M rows in a panel.
struct GemmArgs {
  const PackedMatrix* w;
  const uint8_t* panel;  // aligned to 64
  size_t M, n0, n1;      // outputs [n0, n1); n0 is a multiple of n_step, n1 is one or N
  float* y;              // aligned to 4; [M, n1 - n0], row stride ldy; without bias
  size_t ldy;
  uint8_t* scratch;  // aligned to 64; scratch_bytes(problem, M), of this call alone
  // Null, or the matrix of the caller's next call to this kernel, from n0 on: a hint for
  // prefetching.
  const PackedMatrix* next = nullptr;
};

// Bits for facts of a Problem that most kernels cannot compute. Kernel::supports refuses a problem
// with a fact that Kernel::facts does not name, so that a new fact is a bit here, its words in
// list.cpp, and the kernels that gain it.
enum Fact : uint32_t {
  kOffsets = 1 << 0,   // the problem has Problem::offsets
  kRagged = 1 << 1,    // the problem has Problem::ragged
  kTwoLevel = 1 << 2,  // scale_type is ScaleType::kTwoLevel
  kLut = 1 << 3,       // code is CodeType::kLut4
};

// One kernel. A field without a comment is described at the head of this file.
struct Kernel {
  const char* name;   // file of the kernel, such as "arm_i8mm"
  const char* codec;  // how packed weights are stored: "int4", "int8", "bf16", ...
  Arch arch;          // kOther: runs everywhere
  uint32_t needs;     // CpuFeature bits that the CPU must have
  size_t n_step;      // output columns per tile
  // Returns null, or in words why the kernel cannot compute the problem. Called only for problems
  // whose facts are all in `facts`; everybody else calls supports().
  const char* (*limits)(const Problem&);
  Numerics (*numerics)(const Problem&);
  // Returns the bytes of the packed matrix. Like row_bytes, row_panel_bytes and scratch_bytes it
  // also accepts 0 outputs (N) and 0 rows (M).
  size_t (*packed_bytes)(const Problem&);
  void (*pack)(const PackArgs&);
  size_t (*row_bytes)(const Problem&);
  void (*prepare_rows)(const PrepareArgs&);
  size_t (*row_panel_bytes)(const Problem&, size_t M);
  void (*make_row_panel)(const RowPanelArgs&);
  // Returns the bytes of GemmArgs::scratch; what M rows need is enough for fewer rows, as with
  // row_panel_bytes.
  size_t (*scratch_bytes)(const Problem&, size_t M);
  void (*gemm)(const GemmArgs&);
  // Preferred sizes of a call; callers use them if they have that many outputs or rows, and no
  // result depends on them. n_tile: outputs, a multiple of n_step and of every tile width, so that
  // no call ends with a narrower tile (0: n_step). m_tile: M should be a multiple of it when rows
  // are cut into batches.
  size_t n_tile = 0, m_tile = 8;
  // Returns the offset in packed bytes of the code of element (n, k), so that callers write single
  // elements of a packed matrix: KV blocks gain one token at a time. For dense weights the bytes
  // there are the given ones; for 8-bit codes with one scale per row, a byte that is a function of
  // the code. Column order is not applied. The result is a function of n plus a function of k, so
  // that callers keep two tables. Null: the kernel does not take such weights with activations that
  // are not quantized.
  size_t (*code_at)(const Problem&, size_t n, size_t k) = nullptr;
  uint32_t facts = 0;  // Fact bits of problems that the kernel can compute

  // Returns null, or in words why the kernel cannot compute the problem.
  const char* supports(const Problem& problem) const;
};

// The kernels that one file exports as a constant table; kernels/list.h lists the tables.
struct KernelTable {
  const Kernel* kernels;
  size_t count;
};

}  // namespace moebius
