// SPDX-License-Identifier: Apache-2.0
// Integer and fp4 weights with int8 and fp4 rows on Arm CPUs with dot products, outputs in the
// lanes of a vector: layouts and facts of arm_dotprod's codecs int4_lanes, int8_lanes and
// fp4_lanes. Exact class, like the int8 family (arm_int8.h), which runs what this one does not
// support: zero points, static scales. Internal linkage.
//
// Packed weights: panels of 8 outputs at multiples of 64 bytes, group after group; for every 4
// inputs
//   int4  16 bytes: byte 4 j + i = w[j][k + i] + 8 | w[j + 4][k + i] << 4, j < 4
//   fp4   the same of E2M1 codes
//   int8  32 bytes: byte 4 j + i = w[j][k + i], j < 8
// then scales 8 x bf16 (if they fit exactly; outputs 0 4 1 5 2 6 3 7, so that a shift and an AND of
// words make them f32) or f32. As an int8 a byte of two integers is 16 hi + lo, so SDOT of the
// bytes less SDOT of their lower nibbles is 16 times the sum of the upper ones: one AND for 32
// weights, and no operands in scratch for any number of rows. E2M1 goes through a table to twice
// the value, and sums are 4 times too large. Groups of up to 128 inputs (fp4: all) start their sums
// at a float's bits, so that a subtraction makes them floats.
//
// A panel of activations: tiles of 8 rows, the last one of 1, 2, 4 or 8; for every 4 inputs their
// codes of all rows of the tile (fp4: twice the values). Then for every group and row of a tile -8
// times the sum of its codes (int4) or its scale (fp4), and the scales of the rows.
#pragma once
#include "kernels/arm/arm_fp4.h"
#include "kernels/arm/arm_layout.h"
#include "kernels/arm/arm_shapes.h"
#include "kernels/isa_family.h"
#include "kernels/kernel.h"
#include "kernels/prepared_rows.h"
#include "kernels/unpack.h"

namespace moebius {
namespace {
namespace lanes_family {

using namespace arm_shapes;

constexpr size_t kNr = 8, kKr = 16, kTile = 8;

constexpr arm_layout::Layout kLayout{.nibbles = arm_layout::Order("o2 k0 k1 o0 o1 k2 k3"),
                                     .bytes = arm_layout::Order("k0 k1 o0 o1 o2 k2 k3"),
                                     .halves = {},
                                     .integers = arm_layout::Signed::kUpper,
                                     .scales_first = false,
                                     .scales_in_pairs = true,
                                     .repeats_end = true,
                                     .repeats_f32_end = false};

enum class Form : uint8_t { kInt4, kInt8, kFp4 };

struct Shape {
  size_t groups, group_k, K_padded;
  size_t code_bytes, scale_bytes;  // bytes of one group of a panel
  Form form;
  bool bf16;  // true: scales are stored as bf16
  bool bytes() const { return form == Form::kInt8; }
  size_t step_bytes() const { return bytes() ? 128 : 64; }  // bytes of codes for 16 inputs
  size_t group_bytes() const { return code_bytes + scale_bytes; }
  size_t stride() const { return up(groups * group_bytes(), 64); }
  arm_layout::PanelSizes sizes() const {
    return {groups, group_k, group_k, scale_bytes, 0, 0, group_bytes(), stride(), bf16, !bytes()};
  }
  // true: sums start at the bits of a float.
  bool by_start() const { return !bytes() && group_k <= 128; }
};
inline Shape shape_of(const Problem& p) {
  Shape s{};
  s.form = p.code == CodeType::kFp4 ? Form::kFp4 : p.bits > 4 ? Form::kInt8 : Form::kInt4;
  s.groups = p.block_k >= p.K ? 1 : p.groups;
  s.group_k = s.groups == 1 ? up(p.K, kKr) : p.block_k;
  s.K_padded = s.groups * s.group_k;
  s.bf16 = bf16_scales(p);
  s.code_bytes = s.group_k / kKr * s.step_bytes();
  s.scale_bytes = kNr * (s.bf16 ? 2 : 4);
  return s;
}

inline const char* supports(const Problem& p, bool bytes) {
  if (!of_integers(p)) return "the weights are not integers";
  if ((p.bits > 4) != bytes)
    return bytes ? "4 bits and less have their own codec" : "the weights have more than 4 bits";
  if (p.act.code != ActCode::kInt) return "the checkpoint declares other activations than int8";
  if (p.act.mode == Int8Mode::kVllm) return "mode vllm has rules of its own";
  if (p.act.granule != ActGranule::kRow || !p.act.symmetric || p.zero_points)
    return "there are zero points or static scales";
  if (p.block_k < p.K && p.block_k % 16 != 0) return "the group size is not a multiple of 16";
  if (shape_of(p).group_k > 0x7FFFFFFFu / (128 * (bytes ? 128 : 256)))
    return "sums over K may leave int32";
  return nullptr;
}
inline const char* supports_int4(const Problem& p) { return supports(p, false); }
inline const char* supports_int8(const Problem& p) { return supports(p, true); }
inline const char* supports_fp4(const Problem& p) {
  if (const char* why = not_fp4_pair(p)) return why;
  if (p.block_k % kKr != 0 || p.block_k > 128)
    return "the group size is not a multiple of 16, up to 128";
  return nullptr;
}
inline Numerics numerics(const Problem&) { return Numerics::kExact; }
inline size_t packed_bytes(const Problem& p) { return up(p.N, kNr) / kNr * shape_of(p).stride(); }

inline size_t padded_rows(size_t rows) { return rows <= 2 ? rows : rows <= 4 ? 4 : 8; }
inline size_t panel_rows(size_t M) { return M / kTile * kTile + padded_rows(M % kTile); }
struct PanelLayout {
  size_t groups, scales, bytes;  // where each array begins, after the codes, which start at 0
};
inline PanelLayout panel_layout(const Shape& s, size_t M) {
  PanelLayout l{};
  l.groups = panel_rows(M) * s.K_padded;
  l.scales = l.groups + (s.bytes() ? 0 : 4 * s.groups * panel_rows(M));
  l.bytes = up(l.scales + 4 * panel_rows(M), 64);
  return l;
}
inline size_t row_panel_bytes(const Problem& p, size_t M) {
  return panel_layout(shape_of(p), M).bytes;
}
inline size_t scratch_bytes(const Problem&, size_t) { return 64; }

}  // namespace lanes_family
}  // namespace
}  // namespace moebius
