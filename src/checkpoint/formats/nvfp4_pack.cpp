// SPDX-License-Identifier: Apache-2.0
// Reads format nvfp4-pack-quantized: two E2M1 codes per byte (U8 [N, K/2], low nibble first), one
// F8_E4M3 scale per 16 inputs, and a global scale (F32) that divides. Inputs quantized the same way
// bring an input_global_scale. Each module keeps its own.
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {

void prove_nvfp4_pack(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(
      p, {Role::kWeightPacked, Role::kWeightScale, Role::kWeightZeroPoint, Role::kWeightGlobalScale,
          Role::kInputGlobalScale, Role::kInputScale, Role::kInputZeroPoint, Role::kOutputScale,
          Role::kOutputZeroPoint, Role::kBias});
  const QuantArgs& args = weight_args(p);
  const bool grouped = args.strategy == Strategy::kTensorGroup || args.strategy == Strategy::kGroup;
  if (args.kind != NumberKind::kFloat || args.bits != 4 || !grouped || args.group_size != 16 ||
      !args.symmetric)
    fail("{}: nvfp4-pack-quantized means symmetric 4-bit float weights in groups of 16, not {}",
         plan.tensors.name, describe(args));
  const TensorRef& packed = require_role(p, Role::kWeightPacked);
  require_dtype(p, packed, {DType::kU8});
  require_untransposed(p, packed);
  const Piece piece = matrix_piece(p.store, packed);
  set_dimensions(p, piece, piece.cols * 2);
  plan.code = CodeType::kFp4;
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_scales(p, {DType::kF8E4M3});
  plan.global_scale = {plan_global_scale(p, Role::kWeightGlobalScale)};
  plan_activations(p);
  plan_bias(p);
}

void fill_nvfp4_pack(const Loader& l, QuantMatrix& w) {
  load_codes(l, matrix_piece(l.store, l.plan.tensors[Role::kWeightPacked]), w);
  load_scales(l, w);
  load_plain_zero_points(l, w);
}

}  // namespace moebius
