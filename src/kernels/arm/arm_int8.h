// SPDX-License-Identifier: Apache-2.0
// The int8 family on Arm (integer weights, int8 rows): layouts and facts shared by arm_i8mm,
// arm_dotprod and arm_neon. Exact class: int32 per group, then f = fma(float(acc), c_g, f) in group
// order, then times the scale of the row. Everything has internal linkage: each unit that includes
// this is compiled for its own instruction set.
//
// Packed weights: panels of 8 outputs, one after the other, each at a multiple of 64 bytes; inside
// a panel group after group:
//   codes   for every 16 inputs k..k+15 four pairs of outputs (2j, 2j+1), per pair
//             int4  16 bytes: byte i = w[2j][k+2i] | w[2j][k+2i+1] << 4, i < 8, then the same of w[2j+1]; two's complement
//             int8  the even inputs of both outputs for all four pairs (16 bytes each), then the odd inputs likewise
//   scales  8 x bf16 (if the file's scales are bf16) or 8 x f32
//   zeros   8 x int8, padded to 16 bytes         only with weight zero points
//           8 x f32                              with offsets of weights instead
//   sums    8 x int32: sum of w - zero           only if rows may have a zero point
// A nibble pair is thus a byte of the file: packing 4-bit codes is a copy that interleaves rows.
//
// A panel of activations: rows in pairs, pairs in tiles (TileMap); inside a tile for every 8 inputs
// (the even ones of 16, then the odd ones) 16 bytes per pair: 8 codes of each row; a single row has
// 8 bytes, so that it stays in the first-level cache while weights pass through it. Then row
// scales, sums of the codes per group and pair as [s0,s0,s1,s1] (only with zeros or offsets), and
// zero points of the rows in the same form (only if rows may have them).
//
// fp4 times fp4 (NVFP4, MXFP4) is integer in disguise: twice an E2M1 number is an int8, a sum of
// products 4 times too large, and SCVTF with 2 fraction bits exact. Codes stay E2M1; rows have a
// scale per group, kept behind the row scales as [s0,s0,s1,s1]. With int8 rows, codes of a table
// (E2M1: of twice the numbers, with half the scale) are packed as the bytes that they stand for.
#pragma once
#include "kernels/arm/arm_fp4.h"
#include "kernels/arm/arm_layout.h"
#include "kernels/arm/arm_shapes.h"
#include "kernels/isa_family.h"
#include "kernels/kernel.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

namespace moebius {

// Defined in arm_neon_int8_pack.cpp, once for all units, without instructions beyond NEON.
void pack_int8_family(const PackArgs& args);

namespace {
namespace int8_family {

using namespace arm_shapes;

constexpr size_t kNr = 8;       // outputs per panel
constexpr size_t kWidths = 48;  // tiles have 8, 12 or 16 outputs
constexpr size_t kKr = 16;      // inputs per packed step

constexpr arm_layout::Layout kLayout{.nibbles = arm_layout::Order("k0 k1 k2 k3 o0 o1 o2"),
                                     .bytes = arm_layout::Order("k1 k2 k3 o0 o1 o2 k0"),
                                     .halves = {},
                                     .integers = arm_layout::Signed::kAll,
                                     .scales_first = false,
                                     .scales_in_pairs = false,
                                     .repeats_end = true,
                                     .repeats_f32_end = true};

struct Shape {
  // Number of groups and inputs of a group; a single group ("channel", "tensor") is padded with
  // zero weights.
  size_t groups, group_k, K_padded;
  size_t code_bytes, scale_bytes, zero_bytes, sum_bytes;  // bytes of one group of a panel
  bool bytes;                                             // true: one byte per code
  bool bf16;                                              // true: scales are kept as bf16
  bool row_zeros;                                         // true: rows may have a zero point
  bool fp4;             // true: E2M1 on both sides, rows with a scale per group
  bool zero_points;     // true: weights have zero points
  int32_t offset_bias;  // what is added to codes of weights with offsets; 0: no offsets
  constexpr size_t group_bytes() const { return code_bytes + scale_bytes + zero_bytes + sum_bytes; }
  // Bytes from panel to panel.
  constexpr size_t stride() const { return up(groups * group_bytes(), 64); }
  constexpr bool grouped() const { return groups > 1 || fp4; }  // fp4: one group is a group too
  constexpr arm_layout::PanelSizes sizes() const {
    return {groups, group_k,       group_k,  scale_bytes, zero_points ? zero_bytes : 0,
            0,      group_bytes(), stride(), bf16,        !bytes};
  }
  constexpr bool plain() const { return !bytes && !fp4 && !row_zeros && zero_bytes == 0; }
};

inline bool has_bytes(const Problem& p) { return p.bits > 4 || is_table_problem(p); }

inline Shape shape_of(const Problem& p) {
  Shape s{};
  s.groups = p.block_k >= p.K ? 1 : p.groups;
  s.group_k = s.groups == 1 ? up(p.K, kKr) : p.block_k;
  s.K_padded = s.groups * s.group_k;
  s.bytes = has_bytes(p);
  s.bf16 = bf16_scales(p);
  s.fp4 = p.act.code == ActCode::kFp4;
  s.row_zeros = !s.fp4 && (!p.act.symmetric || p.act.granule == ActGranule::kStatic);
  s.code_bytes = kNr * s.group_k / (s.bytes ? 1 : 2);
  s.scale_bytes = kNr * (s.bf16 ? 2 : 4);
  s.zero_points = p.zero_points;
  s.offset_bias = p.offsets ? 1 << (p.bits - 1) : 0;
  s.zero_bytes = p.zero_points ? 16 : p.offsets ? 4 * kNr : 0;
  s.sum_bytes = s.row_zeros ? 4 * kNr : 0;
  return s;
}

// Returns true if no sum over a group overflows int32. 4-bit operands are used 16 times too large.
inline bool sums_fit(const Problem& p) {
  const size_t x = !p.act.symmetric || p.act.granule == ActGranule::kStatic ? 255 : 128;
  const bool wide = p.zero_points || p.offsets;
  const size_t w = has_bytes(p) ? (wide ? 255 : 128) : 16 * (wide ? 15 : 8);
  return shape_of(p).group_k <= 0x7FFFFFFFu / (x * w);
}

inline const char* supports(const Problem& p, bool bytes) {
  if (!of_integers(p) && !is_table_problem(p)) return "the weights are not integers";
  if (has_bytes(p) != bytes)
    return bytes ? "4 bits and less have their own codec" : "the weights have more than 4 bits";
  if (p.act.code != ActCode::kInt) return "the checkpoint declares other activations than int8";
  if (p.act.mode == Int8Mode::kVllm) return "mode vllm has rules of its own";
  if (p.act.granule == ActGranule::kGroup) return "activations have one scale per group";
  if (p.offsets && (p.act.granule != ActGranule::kRow || !p.act.symmetric))
    return "offsets need symmetric rows with one scale";
  // Loops in assembly, for codes and bf16 scales alone, take two steps of 16 inputs at a time.
  const bool short_groups = p.offsets || is_table_problem(p) || !bf16_scales(p);
  if (p.block_k < p.K && p.block_k % (short_groups ? 16 : 32) != 0)
    return short_groups ? "the group size is not a multiple of 16"
                        : "the group size is not a multiple of 32";
  if (!sums_fit(p)) return "sums over K may leave int32";
  return nullptr;
}
inline const char* supports_fp4(const Problem& p) {
  if (const char* why = not_fp4_pair(p)) return why;
  if (p.block_k % kKr != 0 || p.block_k > 4096)
    return "the group size is not a multiple of 16, up to 4096";
  return nullptr;
}
inline const char* supports_int4(const Problem& p) { return supports(p, false); }
inline const char* supports_int8(const Problem& p) { return supports(p, true); }
inline Numerics numerics(const Problem&) { return Numerics::kExact; }

inline size_t packed_bytes(const Problem& p) { return up(p.N, kNr) / kNr * shape_of(p).stride(); }

// Returns the bytes of a prepared row before its codes. A prepared row has codes [K_padded], scale
// f32 (static schemes: 1, or NaN), zero point int32; for fp4 it is the canonical row (scales first)
// with codes doubled.
inline size_t row_codes(const Problem& p) {
  return p.act.code == ActCode::kFp4 ? prepared_layout(p).codes : 0;
}
inline size_t row_bytes(const Problem& p) {
  return up(row_codes(p) + shape_of(p).K_padded + 8, 64);
}

struct PanelLayout {
  // Offsets of the arrays after the codes, which start at 0.
  size_t pairs, scales, sums, zeros, group_scales, bytes;
};
inline PanelLayout panel_layout(const Shape& s, size_t M) {
  PanelLayout l{};
  l.pairs = (M + 1) / 2;
  l.scales = 2 * l.pairs * s.K_padded;
  l.sums = l.scales + up(2 * l.pairs * 4, 16);
  l.zeros = l.sums + (s.zero_bytes != 0 ? s.groups * l.pairs * 16 : 0);
  l.group_scales = l.zeros + (s.row_zeros ? l.pairs * 16 : 0);
  l.bytes = up(l.group_scales + (s.fp4 ? s.groups * l.pairs * 16 : 0), 64);
  return l;
}
inline size_t row_panel_bytes(const Problem& p, size_t M) {
  return panel_layout(shape_of(p), M).bytes;
}

// Lays out scratch for many rows: int8 operands of several panels, a chunk of K at a time, are made
// once and stay in the first-level cache (64 KiB: a quarter for them and a quarter for a tile of
// rows; half for them is slower). Longer K is divided; sums wait in scratch between chunks.
struct Blocking {
  size_t chunk_groups, chunks;  // groups per chunk of K (if grouped); number of chunks
  size_t chunk_k;               // inputs per chunk
  size_t panels;                // number of panels decoded at once
  // Bytes of the codes of a panel, and of its scales, zeros and sums; where waiting sums begin;
  // total bytes.
  size_t codes, extras, state, bytes;
};
inline Blocking blocking_of(const Shape& s, size_t M) {
  constexpr size_t kChunkK = 2048, kPanelBytes = 16384, kMostPanels = 8;
  Blocking b{};
  const size_t unit = s.grouped() ? s.group_k : kKr;
  const size_t units = s.K_padded / unit;
  const size_t most =
      s.K_padded <= kChunkK * 5 / 4 ? units : (kChunkK / unit > 0 ? kChunkK / unit : 1);
  b.chunks = (units + most - 1) / most;
  b.chunk_groups = (units + b.chunks - 1) / b.chunks;
  b.chunks = (units + b.chunk_groups - 1) / b.chunk_groups;
  b.chunk_k = b.chunk_groups * unit;
  if (!s.grouped()) b.chunk_groups = 1;
  b.codes = s.bytes ? 0 : kNr * b.chunk_k;
  b.extras = b.chunk_groups * 64 * (1 + (s.zero_bytes != 0 ? 1 : 0) + (s.row_zeros ? 1 : 0));
  b.panels = kPanelBytes / (kNr * b.chunk_k);
  b.panels = b.panels < 1 ? 1 : b.panels > kMostPanels ? kMostPanels : b.panels;
  b.state = b.panels * (b.codes + b.extras);
  b.bytes = b.state + (b.chunks > 1 ? b.panels * kNr * up(M, 2) * 4 : 0);
  return b;
}
// Rows and operands that are read together must not use the same sets of the first-level cache:
// operands begin half a way (of 64 KiB in 4) apart from the panel of rows.
constexpr size_t kWay = 16384, kApart = kWay / 2;
// Without groups, 4-bit codes of many rows are computed for 12 outputs at a time, and waiting sums
// have tiles of up to 24 vectors.
constexpr size_t kTwelve = 12, kTwelveSums = 96;
inline size_t scratch_bytes(const Problem& p, size_t M) {
  const Shape s = shape_of(p);
  const Blocking b = blocking_of(s, M);
  const size_t twelve =
      s.grouped() || s.bytes
          ? 0
          : kTwelve * b.chunk_k + (b.chunks > 1 ? (M / 6 + 1) * kTwelveSums * 4 : 0);
  const size_t few = 64 * ((M + 1) / 2);  // bytes of the sums of one panel
  const size_t most = b.bytes > twelve ? b.bytes : twelve;
  return up((most > few ? most : few) + kWay, 64);
}

// Holds the table of a unit's kernels.
struct Kernels {
  Kernel list[3];
};
constexpr FamilyFacts kFacts{kNr,           numerics, packed_bytes, row_bytes, row_panel_bytes,
                             scratch_bytes, kWidths};
constexpr Kernel kernel(const char* name, const char* codec, uint32_t needs,
                        const char* (*fits)(const Problem&), const Bodies& b) {
  Kernel k = kernel_of(Arch::kAarch64, name, codec, needs, fits, kFacts, b);
  k.facts = kOffsets | kTwoLevel | kLut;
  return k;
}
constexpr Kernels kernels(const char* name, uint32_t needs, const Bodies& b) {
  return {{kernel(name, "int4", needs, supports_int4, b),
           kernel(name, "int8", needs, supports_int8, b),
           kernel(name, "fp4", needs, supports_fp4, b)}};
}

}  // namespace int8_family
}  // namespace
}  // namespace moebius
