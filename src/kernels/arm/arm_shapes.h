// SPDX-License-Identifier: Apache-2.0
// Holds facts of problems that several Arm families need for their shapes. Internal linkage;
// included by units compiled for any instruction set.
#pragma once
#include "kernels/arm/arm_layout.h"
#include "kernels/kernel.h"

namespace moebius {
namespace {
namespace arm_shapes {

constexpr size_t up(size_t a, size_t b) { return (a + b - 1) / b * b; }

inline bool of_integers(const Problem& p) {
  return p.code == CodeType::kInt8 || p.code == CodeType::kInt8Offset ||
         p.code == CodeType::kInt4Offset;
}
// Returns true if bf16 holds the stored scales exactly; panels then keep them as bf16, else as f32.
inline bool bf16_scales(const Problem& p) {
  return p.scale_type == ScaleType::kBf16 || p.scale_type == ScaleType::kFp8 ||
         p.scale_type == ScaleType::kE8m0;
}
// Returns the bytes of the scales of 8 outputs in one group: of the first level if there are two.
inline size_t scale_bytes_of(const Problem& p) {
  return 8 * (p.scale_type == ScaleType::kNone       ? 0
              : p.scale_type == ScaleType::kTwoLevel ? 1
              : bf16_scales(p)                       ? 2
                                                     : 4);
}
// Returns the second level of scales of panels whose groups end at `at`.
inline arm_layout::Supers supers_of(const Problem& p, size_t at) {
  if (p.scale_type != ScaleType::kTwoLevel) return {};
  return {at, p.offsets ? size_t{64} : 32, (p.super_phase + p.groups - 1) / p.super_groups + 1,
          p.super_groups, p.super_phase};
}

// Holds the groups of a float problem: stretches of K on which the scales of weights and of rows
// are constant.
struct FloatGroups {
  size_t groups, group_k;  // number of groups; inputs of a group (one group has whole steps)
  size_t weight_k, row_k;  // inputs per scale of weights and of rows
  bool row_groups;         // true: rows have a scale per group
};
inline FloatGroups float_groups(const Problem& p, size_t step) {
  FloatGroups g{};
  g.row_groups = p.act.code != ActCode::kAsIs && p.act.granule == ActGranule::kGroup;
  g.weight_k = p.scale_type == ScaleType::kNone || p.block_k >= p.K ? p.K : p.block_k;
  g.row_k = g.row_groups && p.act.group < p.K ? p.act.group : p.K;
  const size_t least = g.weight_k < g.row_k ? g.weight_k : g.row_k;
  g.groups = (p.K + least - 1) / least;
  g.group_k = g.groups == 1 ? up(p.K, step) : least;
  return g;
}
// Returns why float kernels with steps of `step` inputs cannot have these groups, or null.
// not_multiple: the reason if groups are not whole steps.
inline const char* groups_do_not_fit(const Problem& p, size_t step, const char* not_multiple) {
  const FloatGroups g = float_groups(p, step);
  if (g.row_groups && p.act_order) return "act-order and activation groups do not go together";
  if (g.groups > 1 && g.group_k % step != 0) return not_multiple;
  if (g.groups > 1 && ((g.weight_k < p.K && g.weight_k % g.group_k != 0) ||
                       (g.row_k < p.K && g.row_k % g.group_k != 0)))
    return "groups of weights and of activations do not fit each other";
  return nullptr;
}

// Divides units (rows, or pairs of them) into tiles of at most `most` units, as evenly as possible.
struct TileMap {
  size_t tiles, base, extra;  // the first `extra` tiles have base + 1 units
  constexpr TileMap(size_t units, size_t most)
      : tiles((units + most - 1) / most), base(units / tiles), extra(units % tiles) {}
  constexpr size_t size(size_t t) const { return base + (t < extra ? 1 : 0); }
  constexpr size_t first(size_t t) const { return t * base + (t < extra ? t : extra); }
};

}  // namespace arm_shapes
}  // namespace
}  // namespace moebius
