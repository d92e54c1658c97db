// SPDX-License-Identifier: Apache-2.0
// Reads MLX (Apple): codes as a dense little-endian stream of bits along the inputs, `weight` U32
// [N, K bits / 32]. The scheme says which numbers they are.
//
//   affine        integers from 0 on, `scales` and `biases` of one float type [N, K/g]:  w = code * scale + bias
//   mxfp4, mxfp8  E2M1 or E4M3, `scales` U8 [N, K/32]:  2^(e - 127)
//   nvfp4         E2M1, `scales` U8 [N, K/16], E4M3 bits; optionally `global_scale` F32, the largest magnitude that the
//                 matrix had: weights are multiplied with global_scale / (448 * 6)
//
// Codes of 4 and 8 bits are viewed as read; other widths become one byte each.
#include "base/checked.h"
#include "checkpoint/formats/readers.h"
#include "checkpoint/formats/turned.h"

namespace moebius {
namespace {

CodeType code_of(const QuantArgs& args) {
  if (args.kind == NumberKind::kFloat) return args.bits == 4 ? CodeType::kFp4 : CodeType::kFp8;
  return packed_code(static_cast<unsigned>(args.bits));
}

void plan_offsets(const Planner& p) {
  const TensorRef& scales = p.ref(Role::kWeightScale);
  const TensorRef& ref = require_role(p, Role::kWeightOffset);
  if (ref.info->dtype != scales.info->dtype)
    wrong_tensor(p.store, *ref.info, "dtype {}, as {} has", name_of(scales.info->dtype),
                 scales.info->name);
  const Piece piece = table_piece(p.store, p.plan, ref);
  p.plan.offsets = true;
  p.plan.scale_bytes += piece.count * piece.row_bytes();
}

}  // namespace

void prove_mlx(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const QuantArgs& args = weight_args(p);
  if (args.offsets)
    reject_other_roles(p, {Role::kWeight, Role::kWeightScale, Role::kWeightOffset, Role::kBias});
  else
    reject_other_roles(p,
                       {Role::kWeight, Role::kWeightScale, Role::kWeightGlobalScale, Role::kBias});
  const TensorRef& weight = require_role(p, Role::kWeight);
  require_dtype(p, weight, {DType::kU32});
  require_untransposed(p, weight);
  const Piece piece = matrix_piece(p.store, weight);
  const auto bits = static_cast<uint64_t>(args.bits);
  if (bits == 0 || piece.cols * 32 % bits != 0)
    wrong_tensor(p.store, *weight.info, "words that hold whole codes of {} bits", bits);
  set_dimensions(p, piece, piece.cols * 32 / bits);
  plan.code = code_of(args);
  plan.code_bytes = plan.N * piece.row_bytes();
  if (args.offsets) {
    plan_scales(p, {DType::kBf16, DType::kF16, DType::kF32});
    plan_offsets(p);
  } else {
    plan_scales(p, {DType::kU8});
    if (is_nvfp4(args)) plan.scale_type = ScaleType::kFp8;
    if (is_nvfp4(args) && p.ref(Role::kWeightGlobalScale))
      plan.global_scale = {plan_global_scale(p, Role::kWeightGlobalScale) / (448.0f * 6.0f), true};
    else if (p.ref(Role::kWeightGlobalScale))
      wrong_tensor(p.store, *p.ref(Role::kWeightGlobalScale).info, "mode nvfp4 for a global scale");
  }
  plan_bias(p);
}

void fill_mlx(const Loader& l, QuantMatrix& w) {
  const Piece piece = matrix_piece(l.store, l.plan.tensors[Role::kWeight]);
  load_packed_codes(l, piece, /*padded=*/false, w);
  if (l.plan.offsets) {
    const auto table = [&](Role role) {
      return table_piece(l.store, l.plan, l.plan.tensors[role]);
    };
    w.scales = load_finite(l, table(Role::kWeightScale), "scale", w);
    w.offsets = load_finite(l, table(Role::kWeightOffset), "offset", w);
  } else if (w.scale_type == ScaleType::kE8m0) {
    load_exponents(l, w, 0);
  } else {
    load_scales(l, w);
  }
}

}  // namespace moebius
