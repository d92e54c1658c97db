// SPDX-License-Identifier: Apache-2.0
// Computes the layout of a packed matrix for the portable kernels: rows of codes, then the scales
// of each row, zero points, offsets, and (mode vllm) one f32 per row. All are
// row-major; each region starts at a multiple of 64 bytes.
#pragma once
#include <cstddef>

#include "kernels/unpack.h"

namespace moebius {

struct PackedLayout {
  size_t code_row;                             // bytes of one row of codes
  size_t scale_row;                            // bytes of one row of scales
  size_t offset_row;                           // bytes of one row of offsets; 0: none
  size_t zero_row;                             // bytes of one row of zero points
  size_t codes, scales, zeros, offsets, sums;  // where each region begins, in bytes
  size_t total;
};

// Returns the type in which scales and offsets are kept: f32 for those in two levels.
inline ScaleType kept_scales(const Problem& p) {
  return p.scale_type == ScaleType::kTwoLevel ? ScaleType::kF32 : p.scale_type;
}

inline PackedLayout packed_layout(const Problem& p, size_t bits_per_code) {
  const auto align = [](size_t v) { return (v + 63) / 64 * 64; };
  PackedLayout l{};
  l.code_row = (p.K * bits_per_code + 7) / 8;
  l.scale_row = scale_size(kept_scales(p)) * p.groups;
  l.offset_row = p.offsets ? l.scale_row : 0;
  l.zero_row = p.zero_points ? p.groups : 0;
  l.codes = 0;
  l.scales = align(p.N * l.code_row);
  l.zeros = align(l.scales + p.N * l.scale_row);
  l.offsets = align(l.zeros + p.N * l.zero_row);
  l.sums = align(l.offsets + p.N * l.offset_row);
  l.total = align(l.sums + (p.act.mode == Int8Mode::kVllm ? p.N * sizeof(float) : 0));
  return l;
}

}  // namespace moebius
