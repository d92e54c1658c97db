// SPDX-License-Identifier: Apache-2.0
// The int8 family on x86-64: layouts and facts shared by x86_amx, x86_avx512, x86_avx512bw,
// x86_avxvnni and x86_avx2. Class exact: a group is summed in int32, then f = fma(float(sum), c_g, f) in the order
// of groups, then f times the scale of the row (quant/reference_gemm.cpp). Facts are needed on any
// CPU, so they are functions of a unit compiled for the baseline (facts_x86_int8.cpp).
//
// A GROUP is here a run of inputs on which the scales of weights and of rows are both constant. In
// packed form it takes `padded` inputs; those beyond its own have x = 0 and a weight of 0.
//
// clang-format off
// Packed weights: panels of 16 outputs at a multiple of 64 bytes. Inside a panel
//   codes     for every 8 inputs (nibbles) or 4 inputs (bytes) 64 bytes, 4 for each output:
//               nibbles  byte j = code of input 2j | code of input 2j + 1 << 4: a byte of the file (value + 8, E2M1, or
//                        a place in a table of 16 numbers)
//               bytes    byte j = value of input j, signed
//   scales    per group 16 x bf16, f16 or f32; in two levels 16 x int8, then per super-block 16 x f32
//   zeros     per group 16 x int8                      only with weight zero points
//   offsets   per group 16 offsets, as scales          only if weights have them
//   sums      per group 16 x int32: sum of w - zero    only if rows may have a zero point to subtract
//   row_sums  16 x f32                                 only in mode vllm: S of quant/reference_gemm.cpp
// So 64 bytes are the operand of VPDPBUSD for 16 outputs, and 16 such rows a tile of TDPBSSD.
// Packing is a transpose of 4-byte words. Nibbles give the even inputs of 8 and then the odd ones,
// so rows of x lie in that order too.
//
// A panel of rows: tiles of at most `rows` rows
//   few rows    for every 4 inputs 4 bytes of each row: VPBROADCASTD of one row at a fixed distance from those of the others
//   wide rows   the same with numbers of 16 bits: for every 4 inputs 0, 1, 2, 3 first 0 and 2 of each row, then 1 and 3
//   many rows   for every `step` inputs `step` bytes of each row: an operand of TILELOADD
// then int32 [groups][rows] sums of the codes (with weight zero points; else times what was added
// to the weights to make them unsigned, and negated; with offsets less what codes lack to count
// from 0), float [groups][rows] scales where they are per group or static, float [rows] scales,
// int32 zero points [groups][rows] where sums need them, else [rows], and with offsets float
// [groups][rows] sums of the codes.
// clang-format on
// fp4 times fp4 (NVFP4, MXFP4) is computed with integers: twice an E2M1 number is an int8, so sums
// of products are 4 times too large, and a quarter of them is exact in f32. With int8 rows, E2M1 is a
// table of 16 numbers, twice too large, and packed scales are halved, exactly.
#pragma once
#include "kernels/kernel.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

namespace moebius {

// Packs a matrix; defined in x86_avx2_int8_pack.cpp, for all units.
void pack_x86_int8(const PackArgs& args);

namespace x86_int8 {

constexpr size_t kOutputs = 16;  // outputs of a panel

// kFp4: E2M1 on both sides; kTable: nibbles that stand for any int8, with int8 rows.
enum class Codes : uint8_t { kNibbles, kBytes, kFp4, kTable };
enum class Scales : uint8_t { kBf16, kF16, kF32, kTwoLevel };

struct Shape {
  Codes codes;
  const int8_t* numbers;  // [16] what nibbles stand for; kBytes: null
  Scales scale_type;
  bool halved;        // true: scales are half of those stored
  bool row_zeros;     // true: sums need the zero points of rows
  bool group_scales;  // true: rows have a scale per group, or a static one
  bool vllm;
  bool offsets;                   // true: f = fma(sum of x, offset, f) after each group
  int32_t offset_bias;            // with offsets: what is added to codes so that they count from 0
  size_t groups, length, padded;  // length: inputs of a group; padded: inputs that it occupies
  size_t K_padded;                // groups * padded
  size_t per_scale;               // number of groups that share scales of weights
  size_t step;                    // number of inputs of a tile for TILELOADD
  size_t group_codes, group_scale_bytes;  // bytes of one group in a panel
  // kTwoLevel: group g belongs to super-block (g + super_phase) >> super_shift; super-blocks begin
  // `supers` bytes behind scales, or offsets.
  size_t super_phase, super_shift, supers;
  // Offsets of the arrays of a panel, in bytes; stride: bytes from panel to panel.
  size_t scales, zeros, offsets_at, sums, row_sums, stride;
};
Shape shape_of(const Problem& p);

const char* supports_int4(const Problem& p);
const char* supports_int8(const Problem& p);
const char* supports_fp4(const Problem& p);
// Return why fp4 on both sides is not supported, or null: with tiles for groups of 32 and more
// inputs, and for shorter groups.
const char* supports_fp4_tiles(const Problem& p);
const char* supports_fp4_short_groups(const Problem& p);
Numerics numerics(const Problem& p);
size_t packed_bytes(const Problem& p);

// Divides rows into tiles of `rows` rows; the last tile may have fewer, and tiles for TILELOADD are
// padded with zeros.
struct RowTiles {
  size_t tiles, rows;
  bool many;      // true: tiles for TILELOADD
  bool expanded;  // true: products by vectors, with decoded weights in scratch
  size_t
      code_bytes;  // of a code of these rows, and of a decoded weight: 2 if products are of 16 bits
  size_t padded() const { return tiles * rows; }
};
// How products are computed, and the bits of a vector; kMadd: without VPDPBUSD.
enum class Engine : uint8_t { kMadd256, kMadd512, kVnni256, kVnni512, kAmx };
RowTiles row_tiles(const Shape& s, Engine engine, size_t M);
// Returns the most rows of a tile by vectors with decoded weights; a product takes a register more
// where VPDPBUSD does not add it.
constexpr size_t expanded_rows(Engine engine) { return engine == Engine::kMadd256 ? 4 : 6; }

struct PanelLayout {
  // Offsets of the arrays, in bytes; codes are at 0.
  size_t sums, group_scales, scales, zeros, offset_sums, bytes;
};
PanelLayout panel_layout(const Shape& s, const RowTiles& t);
template <Engine kEngine>
size_t panel_bytes(const Problem& p, size_t M);

// Lays out scratch for many rows: two panels of weights are decoded to int8 operands there, a chunk
// of K at a time, so that they stay in the first-level cache for all tiles of rows.
struct Blocking {
  size_t chunk;             // number of inputs: several groups, or a part of one
  size_t sums, acc, bytes;  // where sums of tiles and f32 results begin, in bytes; total bytes
};
Blocking blocking_of(const Shape& s, const RowTiles& t);
constexpr size_t kExpanded = 4;  // number of panels decoded at a time, by vectors
Blocking expanded_blocking(const Shape& s, const RowTiles& t);
template <Engine kEngine>
size_t scratch_bytes(const Problem& p, size_t M);

// Holds the parts of a kernel that differ between units; functions are null on other architectures.
struct Unit {
  const char* name;
  uint32_t needs;
  void (*make_row_panel)(const RowPanelArgs&);
  void (*gemm)(const GemmArgs&);
  size_t n_tile = 0, m_tile = 8;  // preferred sizes, as in Kernel
};

}  // namespace x86_int8

namespace {

// Holds the table of a unit's kernels, one per codec of the family.
struct X86Int8Kernels {
  Kernel of[3];
};
template <x86_int8::Engine kEngine>
constexpr Kernel x86_int8_kernel(const x86_int8::Unit& u, const char* codec,
                                 const char* (*fits)(const Problem&)) {
  const bool here = u.gemm != nullptr;
  return {u.name,
          codec,
          Arch::kX86_64,
          u.needs,
          x86_int8::kOutputs,
          fits,
          x86_int8::numerics,
          x86_int8::packed_bytes,
          here ? pack_x86_int8 : nullptr,
          prepared_row_bytes,
          here ? prepare_rows_canonical : nullptr,
          x86_int8::panel_bytes<kEngine>,
          u.make_row_panel,
          x86_int8::scratch_bytes<kEngine>,
          u.gemm,
          u.n_tile,
          u.m_tile,
          nullptr,
          kOffsets | kTwoLevel | kLut};
}
template <x86_int8::Engine kEngine>
constexpr X86Int8Kernels x86_int8_kernels(const x86_int8::Unit& u) {
  return {{x86_int8_kernel<kEngine>(u, "int4", x86_int8::supports_int4),
           x86_int8_kernel<kEngine>(u, "int8", x86_int8::supports_int8),
           x86_int8_kernel<kEngine>(u, "fp4", x86_int8::supports_fp4)}};
}

}  // namespace
}  // namespace moebius

// The bodies of a unit's kernels for an engine, or null pointers.
#ifdef MOEBIUS_KERNEL_BODIES
#define MOEBIUS_X86_INT8_BODIES(...) \
  x86_rows::make_row_panel<__VA_ARGS__>, x86_many::gemm<__VA_ARGS__>
#else
#define MOEBIUS_X86_INT8_BODIES(...) nullptr, nullptr
#endif

// Defines the table of a unit's kernels; the last argument: its engine.
#define MOEBIUS_X86_INT8_TABLE(table, kind, name, needs, ...)                          \
  namespace moebius {                                                                  \
  namespace {                                                                          \
  constexpr X86Int8Kernels kKernels = x86_int8_kernels<x86_int8::Engine::kind>(        \
      {name, needs, MOEBIUS_X86_INT8_BODIES(__VA_ARGS__)});                            \
  }                                                                                    \
  extern const KernelTable table;                                                      \
  const KernelTable table = {kKernels.of, sizeof kKernels.of / sizeof kKernels.of[0]}; \
  }
