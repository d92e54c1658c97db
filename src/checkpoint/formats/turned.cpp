// SPDX-License-Identifier: Apache-2.0
// Implements what GPTQ and AWQ share: granularity and scales of matrices with outputs as columns
// (turned.h).
#include "checkpoint/formats/turned.h"

#include <cmath>

#include "base/checked.h"
#include "quant/quant_access.h"

namespace moebius {

TensorRef turned(TensorRef ref) {
  ref.transposed = true;
  return ref;
}

void require_as_stored(const Planner& p) {
  for (const TensorRef& ref : p.plan.tensors.by_role)
    if (ref) require_untransposed(p, ref);
}

void set_short_groups(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const QuantArgs& args = weight_args(p);
  if (args.strategy != Strategy::kChannel &&
      (args.strategy != Strategy::kGroup || args.group_size <= 0))
    fail("{}: {} weights have a scale per group or per output, not per {}", plan.tensors.name,
         name_of(plan.scheme.format), name_of(args.strategy));
  plan.block_n = 1;
  plan.block_k =
      args.strategy == Strategy::kChannel ? plan.K : static_cast<uint64_t>(args.group_size);
  plan.groups = ceil_div(plan.K, plan.block_k);
}

void plan_turned_scales(const Planner& p) {
  const TensorRef& ref = require_role(p, Role::kWeightScale);
  require_dtype(p, ref, {DType::kF16, DType::kBf16, DType::kF32});
  set_short_groups(p);
  MatrixPlan& plan = p.plan;
  plan.scale_type = scale_type_of(ref.info->dtype);
  const Piece piece = table_piece(p.store, plan, turned(ref));
  plan.scale_bytes += piece.count * piece.row_bytes();
}

const uint8_t* load_finite(const Loader& l, const Piece& piece, std::string_view what,
                           QuantMatrix& w) {
  const StoredRows rows = read_rows(l.store, piece, l.buffer);
  w.scale_stride = rows.stride / piece.element_bytes;
  for (size_t r = 0; r < w.N; ++r)
    for (size_t g = 0; g < w.groups; ++g) {
      const float value = table_at(rows.data, w.scale_type, r * w.scale_stride + g);
      if (!std::isfinite(value))
        fail("{}{} is {}; expected a finite {}", l.store.where(*piece.info),
             element_name(piece, r, g), value, what);
    }
  return rows.data;
}

void load_turned_scales(const Loader& l, QuantMatrix& w) {
  const TensorRef scales = turned(l.plan.tensors[Role::kWeightScale]);
  w.scales = load_finite(l, table_piece(l.store, l.plan, scales), "scale", w);
}

}  // namespace moebius
