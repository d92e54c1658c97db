// SPDX-License-Identifier: Apache-2.0
// Computes the layout of the canonical row. Row functions fill it (isa_quantize.h).
#include "kernels/prepared_rows.h"

#include "kernels/row_functions.h"
#include "quant/reference.h"

namespace moebius {

XType quantizer_row_type(const Problem& p) noexcept {
  return p.groups == 1 && p.x_type == XType::kBf16 ? XType::kBf16 : XType::kF32;
}

PreparedLayout prepared_layout(const Problem& p) noexcept {
  PreparedLayout l{};
  l.groups = act_groups(p.act, p.K);
  l.zero_points = act_has_zero_points(p.act) ? l.groups : 0;
  l.codes = ((l.groups + l.zero_points) * 4 + 63) / 64 * 64;
  l.row_bytes = l.codes + (p.K * act_code_bytes(p.act) + 63) / 64 * 64;
  return l;
}

size_t prepared_row_bytes(const Problem& p) { return prepared_layout(p).row_bytes; }

void round_to(XType type, float* x, size_t n) noexcept { row_functions().round(type, x, n); }

void prepare_rows_canonical(const PrepareArgs& args) { row_functions().prepare_rows(args); }

}  // namespace moebius
