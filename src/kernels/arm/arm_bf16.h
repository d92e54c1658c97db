// SPDX-License-Identifier: Apache-2.0
// The float family on Arm CPUs with BF16: layouts and facts of arm_bf16. Both operands decode
// exactly to bf16 (integers of at most 9 bits with sign, e4m3, e2m1, bf16), so every product is
// exact and only the order of sums is the kernel's own: the inputs of a group as BFMMLA adds them,
// then f = fma(dot, scale, f) in group order; where weights q c + b have an offset b (q from 0 on),
// f = fma(sum of x, b, f) after it. Class reordered; the bytes of a row depend on that row alone.
// Internal linkage, as all headers of kernel units.
//
// Packed weights: panels of 8 outputs at multiples of 64 bytes, group after group. The 16 inputs of
// a step are taken in four quarters of 4: inputs 0 2 4 6 | 8 10 12 14 | 1 3 5 7 | 9 11 13 15, so
// that a byte of two 4-bit codes is a byte of the file.
//   codes   for every step four pairs of outputs (o = 2j, 2j+1), per pair
//             4 bit   16 bytes: bytes 0-3 of o, bytes 0-3 of o+1, bytes 4-7 of o, bytes 4-7 of o+1 (value + 8, or E2M1)
//             8 bit   32 bytes: quarters 0 and 1 of codes as above for even inputs, then for odd ones (e4m3 re-coded, or int8)
//           and for 16 bit four quarters, each 4 x 16 bytes: bf16 of 4 inputs of o, of o+1
//   scales  8 x bf16 if the stored type fits exactly (bf16, e4m3, e8m0), 8 x int8 if there are two levels, else 8 x f32;
//           none for dense
//   zeros   8 x int8, padded to 16 bytes                        only with zero points
//   offsets stored as scales are                                only with offsets
//   flags   16 bytes (Flags)                                  only e4m3
// e4m3 shifted into the place of a bf16 is a bf16 2^120 too small, and exact unless it is
// subnormal: one widening shift and one AND. BFMMLA flushes subnormals. A plain group of 256 inputs
// has at most 7 (in trained weights about one group of five has one): they are listed, and added to
// its sums one by one, acc = fma(x, w, acc). A group with more is decoded the long way, 2^117 too
// small; rows are made 2^117 times too large, and scales of plain groups 8 times. Channel-wise e4m3
// is cut into groups of at most 256 for this. An output that has a NaN code in a group has a NaN
// scale there.
//
// A panel ends with the second level of scales (arm_layout::Supers).
//
// A panel of activations: rows in pairs, pairs in tiles as in the int8 family; per quarter 16 bytes
// for each pair (bf16 of 4 inputs of both rows). Then a factor per row, and with activation groups
// a factor per group and pair as [s0,s0,s1,s1]; with offsets the group's sums, likewise.
#pragma once
#include "kernels/arm/arm_layout.h"
#include "kernels/arm/arm_shapes.h"
#include "kernels/kernel.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

#define MOEBIUS_UNROLL _Pragma("GCC unroll 16")

namespace moebius {
namespace {
namespace bf16_family {

using namespace arm_shapes;

constexpr size_t kNr = 8;       // outputs per panel
constexpr size_t kWidths = 48;  // tiles have 8, 12 or 16 outputs
constexpr size_t kKr = 16;      // inputs per packed step
constexpr int kRaise = 117;     // for e4m3 weights: rows are multiplied by 2^kRaise

constexpr arm_layout::Layout kLayout{.nibbles = arm_layout::Order("k0 k1 k2 o0 k3 o1 o2"),
                                     .bytes = arm_layout::Order("k1 k2 o0 k3 k0 o1 o2"),
                                     .halves = arm_layout::Order("b0 k1 k2 o0 o1 o2 k3 k0"),
                                     .integers = arm_layout::Signed::kNone,
                                     .scales_first = false,
                                     .scales_in_pairs = false,
                                     .repeats_end = false,
                                     .repeats_f32_end = false};

enum class Form : uint8_t { kInt4, kFp4, kFp8, kInt8, kBf16 };  // kFp4: any table of 16 numbers

// Flags of a group of e4m3 codes, written when packing: whether it is plain, and its subnormal
// weights. An entry is the input within the group, then output, sign and last three bits of the
// weight.
struct Flags {
  static constexpr size_t kMost = 7, kLongest = 256;
  uint8_t plain, count, entries[2 * kMost];
  static constexpr uint16_t entry(size_t k, size_t output, uint8_t code) {
    return static_cast<uint16_t>((output << 4 | (code & 7) | (code & 0x80) >> 4) << 8 | k);
  }
  // Returns the most entries for which a group of `inputs` costs less than decoding it in the
  // general way.
  static constexpr size_t most(size_t inputs) {
    return inputs > kLongest ? 0 : inputs / 32 < kMost ? inputs / 32 : kMost;
  }
  size_t input(size_t i) const { return entries[2 * i]; }
  size_t output(size_t i) const { return entries[2 * i + 1] >> 4; }
  // Returns the weight as plain weights are decoded, 2^120 too small.
  float weight(size_t i) const {
    const uint8_t c = entries[2 * i + 1];
    const float size = static_cast<float>(c & 7) * 0x1p-129f;
    return (c & 8) != 0 ? -size : size;
  }
};
static_assert(sizeof(Flags) == 16);

struct Shape : FloatGroups {
  size_t K_padded;
  size_t step_bytes, code_bytes, scale_bytes, zero_bytes, offset_bytes,
      flag_bytes;  // bytes of the codes of 16 inputs; then of the parts of one group of a panel
  int lift;        // what is added to codes so that they count from 0; 0 without offsets
  arm_layout::Supers supers;
  Form form;
  bool bf16;   // true: scales are stored as bf16
  bool dense;  // true: weights have no scales
  size_t group_bytes() const {
    return code_bytes + scale_bytes + zero_bytes + offset_bytes + flag_bytes;
  }
  size_t stride() const { return up(supers.at != 0 ? supers.end() : groups * group_bytes(), 64); }
  arm_layout::PanelSizes sizes() const {
    return {groups,        group_k,
            weight_k,      scale_bytes,
            zero_bytes,    0,
            group_bytes(), stride(),
            bf16,          form == Form::kInt4 || form == Form::kFp4,
            offset_bytes,  supers};
  }
  bool grouped() const { return groups > 1; }
  // Returns true if panels of rows have numbers per group: factors, or sums for offsets.
  bool row_numbers() const { return row_groups || offset_bytes != 0; }
  // Returns the bytes of a group's scales, and offsets, as they are spread in scratch.
  size_t spread_bytes() const { return offset_bytes != 0 ? 128 : 64; }
};

inline Form form_of(const Problem& p) {
  switch (p.code) {
    case CodeType::kFp4:
    case CodeType::kLut4:
      return Form::kFp4;
    case CodeType::kFp8:
      return Form::kFp8;
    case CodeType::kBf16:
      return Form::kBf16;
    default:
      return p.bits > 4 ? Form::kInt8 : Form::kInt4;
  }
}

inline Shape shape_of(const Problem& p) {
  Shape s{};
  s.form = form_of(p);
  static_cast<FloatGroups&>(s) = float_groups(p, kKr);
  if (s.form == Form::kFp8 && s.groups == 1) {
    constexpr size_t kLongest = 256;
    s.groups = (p.K + kLongest - 1) / kLongest;
    s.group_k = up((p.K + s.groups - 1) / s.groups, kKr);
    s.groups = (p.K + s.group_k - 1) / s.group_k;
  }
  s.K_padded = s.groups * s.group_k;
  s.bf16 = bf16_scales(p);
  s.step_bytes = kKr * kNr *
                 (s.form == Form::kBf16                           ? 4
                  : s.form == Form::kInt4 || s.form == Form::kFp4 ? 1
                                                                  : 2) /
                 2;
  s.code_bytes = s.group_k / kKr * s.step_bytes;
  s.scale_bytes = scale_bytes_of(p);
  s.zero_bytes = p.zero_points ? 16 : 0;
  s.offset_bytes = p.offsets ? s.scale_bytes : 0;
  s.lift = p.offsets ? 1 << (p.bits - 1) : 0;
  s.flag_bytes = s.form == Form::kFp8 ? 16 : 0;
  s.supers = supers_of(p, s.groups * s.group_bytes());
  s.dense = s.form == Form::kBf16 && s.scale_bytes == 0 && p.act.code == ActCode::kAsIs;
  return s;
}

// Returns the offset of a code.
inline size_t code_at(const Problem& p, size_t n, size_t k) {
  const Shape s = shape_of(p);
  const size_t group = n / kNr * s.stride() + k / s.group_k * s.group_bytes();
  k %= s.group_k;
  const arm_layout::Order& order = s.form == Form::kBf16 ? kLayout.halves : kLayout.bytes;
  return group + k / kKr * s.step_bytes + order.address(n % kNr, k % kKr);
}

inline const char* supports(const Problem& p) {
  if (p.code == CodeType::kF16 || p.code == CodeType::kF32) return "the weights do not fit bf16";
  if (p.code == CodeType::kFp8 && p.scale_type == ScaleType::kNone)
    return "the weights have no scales";
  if (p.act.code == ActCode::kInt) return "the checkpoint declares int8 activations";
  if (p.act.code == ActCode::kAsIs && p.x_type != XType::kBf16)
    return "the activations are not rounded to bf16";
  if (p.offsets && (!of_integers(p) || p.act.code != ActCode::kAsIs))
    return "offsets go with integers and rows that are not quantized";
  if (p.scale_type == ScaleType::kTwoLevel &&
      (p.zero_points || p.code == CodeType::kFp8 || p.act.code != ActCode::kAsIs))
    return "scales in two levels do not go with zero points, fp8 and quantized rows";
  return groups_do_not_fit(p, kKr, "the group size is not a multiple of 16");
}
inline Numerics numerics(const Problem&) { return Numerics::kReordered; }

inline size_t packed_bytes(const Problem& p) { return up(p.N, kNr) / kNr * shape_of(p).stride(); }

// Returns the size of a prepared row's header: the header of the canonical row (scales; a factor
// for e4m3 weights and rows that are not quantized). After it follows bf16 [K_padded] in the order
// of x.
inline size_t row_codes(const Problem& p) {
  return p.act.code == ActCode::kAsIs ? (form_of(p) == Form::kFp8 ? 64 : 0)
                                      : prepared_layout(p).codes;
}
inline size_t row_bytes(const Problem& p) {
  return up(row_codes(p) + 2 * shape_of(p).K_padded, 64);
}

// Returns by how many powers of two a row for e4m3 weights is raised: its largest number, with bits
// `top`, becomes about 2^kRaise, but at most 126. Sums are then no larger than those of a row of
// ones; scales that are large themselves leave no room.
inline int headroom(uint32_t top) {
  if (top >= 0x7f800000u) return 0;  // NaN or infinity: the outputs are, too
  const int by = kRaise - (static_cast<int>(top >> 23) - 127);
  return by > 126 ? 126 : by;
}

struct PanelLayout {
  // Number of pairs of rows; where factors begin after the operands, which start at 0; bytes of
  // all.
  size_t pairs, factors, group_factors, bytes;
};
inline PanelLayout panel_layout(const Shape& s, size_t M) {
  PanelLayout l{};
  l.pairs = (M + 1) / 2;
  l.factors = 4 * l.pairs * s.K_padded;
  l.group_factors = l.factors + up(8 * l.pairs, 16);
  l.bytes = up(l.group_factors + (s.row_numbers() ? s.groups * l.pairs * 16 : 0), 64);
  return l;
}
inline size_t row_panel_bytes(const Problem& p, size_t M) {
  return panel_layout(shape_of(p), M).bytes;
}

// Pairs in the largest tile. Six pairs keep 24 sums; f of groups is then in memory, which pays off
// for groups of 64 or more inputs.
constexpr size_t kMostPairs = 6;
inline size_t most_pairs(const Shape& s) { return s.grouped() && s.group_k < 64 ? 3 : kMostPairs; }

// Lays out scratch: operands of several panels and a chunk of K are decoded once and stay in the
// first-level cache.
struct Blocking {
  size_t chunk_groups, chunks, chunk_k, panels;
  // Bytes of codes and of extras per panel; where sums that wait for the next chunk begin; total
  // bytes.
  size_t codes, extras, state, bytes;
};
inline Blocking blocking_of(const Shape& s, size_t M) {
  constexpr size_t kChunkK = 1024, kPanelBytes = 16384, kMostPanels = 8;
  Blocking b{};
  const size_t unit = s.grouped() ? s.group_k : kKr;
  const size_t units = s.K_padded / unit;
  // true: each weight is used once, so nothing is decoded to scratch.
  const bool whole =
      s.K_padded <= kChunkK * 5 / 4 || (s.form == Form::kBf16 && M <= 2 * most_pairs(s));
  const size_t most = whole ? units : (kChunkK / unit > 0 ? kChunkK / unit : 1);
  b.chunks = (units + most - 1) / most;
  b.chunk_groups = (units + b.chunks - 1) / b.chunks;
  b.chunks = (units + b.chunk_groups - 1) / b.chunk_groups;
  b.chunk_k = b.chunk_groups * unit;
  if (!s.grouped()) b.chunk_groups = 1;
  b.codes = s.form == Form::kBf16 ? 0 : 2 * kNr * b.chunk_k;
  b.extras = b.chunk_groups * s.spread_bytes();
  b.panels = kPanelBytes / (2 * kNr * b.chunk_k);
  b.panels = b.panels < 1 ? 1 : b.panels > kMostPanels ? kMostPanels : b.panels;
  b.state = b.panels * (b.codes + b.extras);
  b.bytes = b.state + (b.chunks > 1 ? b.panels * kNr * up(M, 2) * 4 : 0);
  return b;
}
inline size_t scratch_bytes(const Problem& p, size_t M) {
  return up(blocking_of(shape_of(p), M).bytes, 64);
}

}  // namespace bf16_family
}  // namespace
}  // namespace moebius
