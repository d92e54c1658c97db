// SPDX-License-Identifier: Apache-2.0
// The canonical prepared row: the quantized form of one row of x with its scales, whose bytes equal
// quant/reference. A kernel may use these functions as its row_bytes and prepare_rows, and reorder
// in make_row_panel. Declarations only (see list.h, rule 4); the loops are row functions
// (row_functions.h), chosen for the machine.
// clang-format off
//   offset 0      scales        float[S]    S = act_groups: 0 for kAsIs, 1 for kRow and kStatic, ceil(K / group) for kGroup
//   offset 4 S    zero points   int32[S]    only for dynamic asymmetric integers (PreparedLayout::zero_points)
//   offset codes  codes         int8[K], e4m3 bytes [K], E2M1 one code per byte [K], or float[K] for kAsIs
// clang-format on
// row_bytes is a multiple of 64; codes start at a multiple of 64.
#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/kernel.h"

namespace moebius {

struct PreparedLayout {
  size_t groups;       // number of scales S
  size_t zero_points;  // number of zero points: S or 0
  size_t codes;        // offset of the codes in bytes
  size_t row_bytes;
};

PreparedLayout prepared_layout(const Problem& p) noexcept;
size_t prepared_row_bytes(const Problem& p);
void prepare_rows_canonical(const PrepareArgs& args);
void round_to(XType type, float* x, size_t n) noexcept;  // rounds n numbers in place

// Returns the type whose rounding of ties mode vllm uses: bf16 only if weights have one scale per
// row.
XType quantizer_row_type(const Problem& p) noexcept;

}  // namespace moebius
