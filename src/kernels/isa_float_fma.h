// SPDX-License-Identifier: Apache-2.0
// The float family by f32 fused multiply-adds: facts and layouts (packed weights: isa_float.h;
// loops: isa_float_fma_gemm.h). Internal linkage.
//
// A panel of rows: tiles of at most kTile rows, of equal size if possible, f32 [input][row]. Then a
// factor per row, and with activation groups factors [group][row].
#pragma once
#include "kernels/isa_float.h"

namespace moebius {
namespace {
namespace fma_float {

using namespace float_panels;

constexpr size_t kStep = 8;   // packed inputs per step, the longest unit
constexpr size_t kTile = 12;  // most rows of a tile
// Inputs of one panel that are decoded at once: all, or half as many for more than kSomeRows rows
// with more inputs, so that rows fit into the first-level cache, too (measured).
constexpr size_t kChunk = 256;
constexpr size_t kSomeRows = 128;
constexpr size_t kMostPanels = 4;
constexpr size_t kDirect = 8;            // up to this number of rows, no scratch is needed
constexpr std::ptrdiff_t kAhead = 2048;  // number of bytes by which prefetches of a panel are ahead

inline Shape fma_shape(const Problem& p) { return shape_of(p, kStep); }
template <Form kForm>
const char* supports(const Problem& p) {
  return only<kForm>(p, family_supports(p));
}
inline size_t fma_packed_bytes(const Problem& p) { return packed_bytes(p, fma_shape(p)); }

// The tile to which a row belongs.
struct RowTile {
  size_t first, rows;
};
inline RowTile tile_of(size_t m, size_t M) {
  const size_t tiles = (M + kTile - 1) / kTile, rows = M / tiles, longer = M % tiles * (rows + 1);
  return m < longer ? RowTile{m / (rows + 1) * (rows + 1), rows + 1}
                    : RowTile{longer + (m - longer) / rows * rows, rows};
}

struct PanelLayout {
  size_t factors, group_factors, bytes;
};
inline PanelLayout panel_layout(const Problem& p, const Shape& s, size_t M) {
  PanelLayout l{};
  l.factors = up(4 * M * p.K, 64);
  l.group_factors = l.factors + up(4 * M, 64);
  l.bytes = l.group_factors + (s.row_groups ? up(4 * s.groups * M, 64) : 0);
  return l;
}
inline size_t row_panel_bytes(const Problem& p, size_t M) {
  return panel_layout(p, fma_shape(p), M).bytes;
}
// Offset of the sums in scratch, in bytes: after decoded weights [panel][input][32]. Each row has
// `dot` and `f` of the outputs that are being computed.
constexpr size_t kSumsAt = kChunk * kNr * 4;
inline size_t scratch_bytes(const Problem&, size_t M) {
  return kSumsAt + up(M * kMostPanels * kNr * 8, 64);
}

}  // namespace fma_float
}  // namespace
}  // namespace moebius
