// SPDX-License-Identifier: Apache-2.0
// The float family on AMX: facts and layouts (packed weights: isa_float.h). Internal linkage.
//
// Both operands are exact in bf16: integers of at most 9 bits with sign, e4m3, e2m1, bf16; rows of
// f16 are the sum of two bf16 numbers and rows of f32 of three, which follow each other (limbs). So
// every product is exact, and only the order of sums is the kernel's own: the result of TDPBF16PS
// for a row does not depend on other rows, and one row is added in the same order as many.
//
// A prepared row: the header of the canonical row (scales, if rows are quantized), then bf16
// [limb][K]. A panel: tiles of 16 rows (of M if there are fewer), for every step of 32 or 16 inputs
// and limb [row][inputs]; the inputs of a unit of codes stand in the order in which decoding makes
// them. Then a factor per row, and with activation groups factors [group][row].
#pragma once
#include "kernels/isa_float.h"

namespace moebius {
namespace {
namespace amx_float {

using namespace float_panels;

constexpr size_t kTile = 16;  // number of rows, and of outputs, of a tile

// Returns true for rows whose groups have powers of two as scales, so that code times scale fits
// bf16. The first scale of such a prepared row becomes a factor of the whole row.
inline bool folds_rows(const Problem& p) {
  return p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kGroup &&
         (p.act.scale == ActScale::kE8m0 || p.act.scale == ActScale::kE8m0Up) &&
         p.act.group % 32 == 0;
}
// Returns true if the scales of weights can be multiplied into the weights: those of regular
// groups, unless rows have scales per group.
inline bool folds(const Problem& p, ScaleType type) {
  return p.scale_type == type && !p.ragged &&
         (p.act.code == ActCode::kAsIs || p.act.granule == ActGranule::kRow || folds_rows(p));
}
inline bool folds_fp8(const Problem& p) {
  return p.code == CodeType::kFp4 && folds(p, ScaleType::kFp8) &&
         (p.block_k == 16 || p.block_k % 32 == 0 || p.block_k >= p.K);
}
inline bool folds_e8m0(const Problem& p) {
  return folds(p, ScaleType::kE8m0) && (p.block_k % 32 == 0 || p.block_k >= p.K);
}
inline Shape amx_shape(const Problem& p) {
  Shape s = shape_of(p, 32);
  const bool steps = s.groups == 1 || s.group_k % 32 == 0 || folds_fp8(p);
  if (!steps || p.ragged) s = shape_of(p, 16);
  s.row_groups = s.row_groups && !folds_rows(p);
  if (folds_fp8(p)) {  // steps need not end at the ends of groups
    s.most_k = s.group_k, s.K_padded = s.K_rows;
    s.code_bytes = s.code_at(s.K_padded);
  }
  return s;
}
inline const char* amx_supports(const Problem& p) {
  if (p.code == CodeType::kF16 || p.code == CodeType::kF32) return "the weights do not fit bf16";
  return family_supports(p);
}
template <Form kForm>
const char* supports(const Problem& p) {
  return only<kForm>(p, amx_supports(p));
}
inline size_t amx_packed_bytes(const Problem& p) { return packed_bytes(p, amx_shape(p)); }

inline size_t limbs_of(const Problem& p) {
  return p.act.code != ActCode::kAsIs || p.x_type == XType::kBf16 ? 1
         : p.x_type == XType::kF16                                ? 2
                                                                  : 3;
}
inline size_t row_codes(const Problem& p) {
  return p.act.code == ActCode::kAsIs ? 0 : prepared_layout(p).codes;
}
inline size_t row_bytes(const Problem& p) { return row_codes(p) + limbs_of(p) * up(2 * p.K, 64); }

struct PanelLayout {
  size_t tile_rows, tiles, limbs;
  size_t tile_bytes;   // bytes of one tile for one step and limb
  size_t tiles_bytes;  // bytes of all steps of a tile of rows
  size_t factors, group_factors, bytes;
  size_t rows() const { return tile_rows * tiles; }
};
inline PanelLayout panel_layout(const Problem& p, const Shape& s, size_t M) {
  PanelLayout l{};
  l.tile_rows = M < kTile ? M : kTile;
  l.tiles = (M + kTile - 1) / kTile;
  l.limbs = limbs_of(p);
  l.tile_bytes = l.tile_rows * s.step * 2;
  l.tiles_bytes = l.tile_rows * 2 * l.limbs * s.K_rows;
  l.factors = up(l.tiles * l.tiles_bytes, 64);
  l.group_factors = l.factors + up(4 * l.rows(), 64);
  l.bytes = l.group_factors + (s.row_groups ? up(4 * l.rows() * s.groups, 64) : 0);
  return l;
}
inline size_t row_panel_bytes(const Problem& p, size_t M) {
  return panel_layout(p, amx_shape(p), M).bytes;
}

// A single row of at most two limbs is computed without tiles, for several panels at a time, which
// gives more chains of sums and streams of memory.
constexpr size_t kRowPanels = 4;
// Most groups of a chunk: their scales as f32 stay in the first-level cache.
constexpr size_t kRowGroups = 32;
inline bool is_single(const PanelLayout& l) { return l.rows() == 1 && l.limbs <= 2; }

// Lays out scratch: decoded weights of a chunk of K (not for a single row), its scales, sums of
// several groups of a block of 32 rows, sums of all rows; a single row as f32.
struct Blocking {
  size_t chunk_k, chunk_groups;            // most inputs and groups of a chunk
  size_t batch;                            // number of groups whose sums wait to be added
  size_t scales, sums, state, row, bytes;  // offsets of the arrays, in bytes; total bytes
};
inline Blocking blocking_of(const Shape& s, const PanelLayout& l, bool ragged) {
  // Decoded weights must fit into the first-level cache together with passing rows and sums.
  const bool single = is_single(l);
  const size_t longest = single ? 4096 : s.form == Form::kBf16 ? 512 : 128;
  constexpr size_t kSums = 16384;
  Blocking b{};
  const bool grouped = s.groups > 1;
  if (ragged) {
    b.chunk_k = s.K_padded;
    b.chunk_groups = s.groups;
  } else if (grouped) {
    b.chunk_groups = s.most_k < longest ? longest / s.most_k : 1;
    if (single && b.chunk_groups > kRowGroups) b.chunk_groups = kRowGroups;
    b.chunk_k = b.chunk_groups * s.most_k;
  } else {
    b.chunk_groups = 1;
    b.chunk_k = s.K_padded < longest ? s.K_padded : longest;
  }
  const size_t rows = l.tiles > 1 ? 2 * kTile : l.tile_rows;
  b.batch = b.chunk_groups;
  if (b.batch > 1 && b.batch > kSums / (rows * kNr * 4)) b.batch = kSums / (rows * kNr * 4);
  const size_t panels = single ? kRowPanels : 1;
  b.scales = single || s.form == Form::kBf16 ? 0 : b.chunk_k * kNr * 2;
  b.sums = b.scales + panels * b.chunk_groups * kNr * 4;
  const size_t sums = b.chunk_groups * rows * kNr * 4;
  b.state = b.sums + panels * (sums < kSums ? sums : kSums);
  b.row = b.state + up(l.tiles, 2) * kTile * kNr * 4;
  b.bytes = b.row + (single ? l.limbs * s.K_rows * 4 : 0);
  return b;
}
inline size_t scratch_bytes(const Problem& p, size_t M) {
  if (M == 0) return 0;
  const Shape s = amx_shape(p);
  const size_t one = blocking_of(s, panel_layout(p, s, 1), p.ragged).bytes;
  const size_t all = blocking_of(s, panel_layout(p, s, M), p.ragged).bytes;
  return one > all ? one : all;
}

}  // namespace amx_float
}  // namespace
}  // namespace moebius
