// SPDX-License-Identifier: Apache-2.0
// Weights at their stored width (e4m3, int8, bf16, f16, f32) multiplied as floats on every 64-bit
// Arm CPU: layouts and facts of arm_neon's codecs fp8, bytes, bf16, f16 and dense32 and of arm_fhm.
// Each output is one chain of fused multiply-adds over its group in the order of K, then f =
// fma(dot, scale, f): the operations of the definition in their order. Internal linkage, as all
// headers of kernel units.
//
// Packed weights: panels of 32 outputs, group after group: for every input the codes of the 32
// outputs (of bf16 0 4 1 5 2 6 3 7 and so on: a word is two of them, one shift and one AND away
// from f32), then their scales (bf16 if the stored type fits exactly, else f32; none for dense). A
// panel is one sequence of addresses, and its 8 vectors of sums are enough for the latency of FMLA:
// some cores read memory fastest by one stream per thread.
//
// e4m3 has its nibbles swapped, so that no shifts are needed: the upper nibble is the lower half of
// what is placed into an f32, the lower one (sign, exponent) goes through a table. Placed so it is
// 2^120 too small, exact also when it is subnormal; rows are made too large in return, as far as
// they can be: by 2^120 if they are below 2^8, and 2^119 if they are codes. Rows that are larger
// end with a factor, and very small terms beside them may be lost, which is why the class is exact
// for rows of codes alone. An output with a NaN code in a group has a NaN scale there. arm_fhm
// keeps e4m3 as it is: shifted it is an f16, 2^8 too small, and rows of codes stay what they are.
//
// int8 is kept as code + 128, outputs 0 4 8 12 1 5 9 13 and so on: put into the lower bits of a
// large float, two of the bytes of a word are one insertion and one subtraction away from f32.
//
// A panel of activations: tiles of 8 rows, the last one of 1, 2, 4 or 8; for every input the f32 of
// the rows of a tile. Then a factor per row, with activation groups factors [group][row], and
// whether all rows are f16.
#pragma once
#include "kernels/arm/arm_layout.h"
#include "kernels/arm/arm_shapes.h"
#include "kernels/isa_family.h"
#include "kernels/kernel.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

namespace moebius {
namespace {
namespace float_family {

using namespace arm_shapes;

constexpr size_t kNr = 32, kKr = 4, kTile = 8;
constexpr size_t kFew = 4;      // most rows whose weights are decoded in registers
constexpr size_t kChunk = 256;  // inputs decoded to scratch at once: 32 KiB

// Describes how e4m3 weights are stored and decoded. kSmall: decoded numbers are 2^kSmall too
// small; kCodesRaised: rows of codes are multiplied by 2^kCodesRaised.
struct Fp8InF32 {
  // false: numbers are f32, and nibbles of codes are swapped.
  static constexpr bool kHalves = false;
  static constexpr int kSmall = 120, kCodesRaised = 119;
};
struct Fp8InF16 {
  // true: numbers are f16, and codes are stored as in the file.
  static constexpr bool kHalves = true;
  static constexpr int kSmall = 8, kCodesRaised = 0;
};

// Arrangements of the codes of a panel's outputs at a few inputs.
constexpr arm_layout::Order kFp8Order("o0 o1 o2 o3 o4 k0 k1 k2"),
    kInt8Order("o2 o3 o0 o1 o4 k0 k1 k2"), kBf16Order("b0 o2 o0 o1 o3 o4 k0 k1"),
    kF16Order("b0 o0 o1 o2 o3 o4 k0 k1"), kF32Order("b0 b1 o0 o1 o2 o3 o4 k0");
constexpr const arm_layout::Order& order_of(CodeType code) {
  switch (code) {
    case CodeType::kFp8:
      return kFp8Order;
    case CodeType::kInt8:
    case CodeType::kInt8Offset:
      return kInt8Order;
    case CodeType::kBf16:
      return kBf16Order;
    case CodeType::kF32:
      return kF32Order;
    default:
      return kF16Order;
  }
}

struct Shape : FloatGroups {
  size_t K_padded;
  size_t size;                     // bytes per code
  size_t code_bytes, scale_bytes;  // bytes of one group of a panel
  bool fp8, bf16;                  // bf16: scales are stored as bf16
  bool as_is;
  size_t group_bytes() const { return code_bytes + scale_bytes; }
  // Bytes from panel to panel, a multiple of 64.
  size_t stride() const { return groups * group_bytes(); }
};

inline Shape shape_of(const Problem& p) {
  Shape s{};
  s.as_is = p.act.code == ActCode::kAsIs;
  static_cast<FloatGroups&>(s) = float_groups(p, kKr);
  s.K_padded = s.groups * s.group_k;
  s.fp8 = p.code == CodeType::kFp8;
  s.size = s.fp8 || of_integers(p) ? 1 : p.code == CodeType::kF32 ? 4 : 2;
  s.bf16 = bf16_scales(p);
  s.code_bytes = s.group_k * kNr * s.size;
  s.scale_bytes = p.scale_type == ScaleType::kNone && !s.fp8 ? 0 : kNr * (s.bf16 ? 2 : 4);
  return s;
}

inline const char* supports(const Problem& p, CodeType code) {
  const bool offset = code == CodeType::kInt8 && p.code == CodeType::kInt8Offset;
  if (p.code != code && !offset) return "another codec holds these weights";
  if (of_integers(p) && p.bits != 8) return "fewer than 8 bits would be kept in bytes";
  if (p.zero_points) return "the weights have zero points";
  if (p.act.code == ActCode::kInt) return "the checkpoint declares int8 activations";
  return groups_do_not_fit(p, kKr, "the group size is not a multiple of 4");
}
template <CodeType code>
inline const char* supports_only(const Problem& p) {
  return supports(p, code);
}
inline Numerics numerics(const Problem& p) {
  return p.code == CodeType::kFp8 && p.act.code == ActCode::kAsIs ? Numerics::kReordered
                                                                  : Numerics::kExact;
}
inline size_t packed_bytes(const Problem& p) { return up(p.N, kNr) / kNr * shape_of(p).stride(); }
inline size_t code_at(const Problem& p, size_t n, size_t k) {
  const Shape s = shape_of(p);
  return n / kNr * s.stride() + k / s.group_k * s.group_bytes() + k % s.group_k * kNr * s.size +
         order_of(p.code).address(n % kNr, 0);
}

// Returns the rows in the tiles for M rows, including the padding of the last tile.
inline size_t panel_rows(size_t M) {
  const size_t last = M % kTile;
  return M - last + (last <= 2 ? last : last <= 4 ? 4 : 8);
}

struct PanelLayout {
  size_t factors, group_factors, all_f16, bytes;
};
inline PanelLayout panel_layout(const Shape& s, size_t M) {
  PanelLayout l{};
  l.factors = 4 * panel_rows(M) * s.K_padded;
  l.group_factors = l.factors + 4 * M;
  l.all_f16 =
      l.group_factors + (s.row_groups ? 4 * (s.groups * M + kTile) : 0);  // whole tiles are read
  l.bytes = up(l.all_f16 + 4, 64);
  return l;
}
inline size_t row_panel_bytes(const Problem& p, size_t M) {
  return panel_layout(shape_of(p), M).bytes;
}

// Returns the bytes of sums in scratch, which has decoded weights [panel / 8][chunk][8], then for
// each tile of rows and 8 outputs dot [8][8] and f [8][8].
inline size_t sums_bytes(size_t M) { return up(M, kTile) * 2 * kNr * 4; }
inline size_t scratch_bytes(const Problem&, size_t M) { return kChunk * kNr * 4 + sums_bytes(M); }

constexpr FamilyFacts kFacts{
    kNr, numerics, packed_bytes, prepared_row_bytes, row_panel_bytes, scratch_bytes,
    0,   kTile,    code_at};
constexpr Kernel kernel(const char* name, const char* codec, uint32_t needs,
                        const char* (*fits)(const Problem&), const Bodies& b) {
  return kernel_of(Arch::kAarch64, name, codec, needs, fits, kFacts, b);
}

}  // namespace float_family
}  // namespace
}  // namespace moebius
