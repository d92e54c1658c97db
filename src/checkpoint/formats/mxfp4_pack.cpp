// SPDX-License-Identifier: Apache-2.0
// Reads format mxfp4-pack-quantized: two E2M1 codes per byte (U8 [N, K/2], low nibble first), one
// exponent byte per 32 inputs (U8 or F8_E8M0 [N, K/32], 2^(e - 127)). Version 0.13 of the writer
// stored exponents 2 too small: they are corrected in the buffer, and the plan says so.
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {

void prove_mxfp4_pack(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(
      p, {Role::kWeightPacked, Role::kWeightScale, Role::kWeightZeroPoint, Role::kInputScale,
          Role::kInputZeroPoint, Role::kOutputScale, Role::kOutputZeroPoint, Role::kBias});
  const QuantArgs& args = weight_args(p);
  if (args.kind != NumberKind::kFloat || args.bits != 4 || args.strategy != Strategy::kGroup ||
      args.group_size != 32 || !args.symmetric)
    fail("{}: mxfp4-pack-quantized means symmetric 4-bit float weights in groups of 32, not {}",
         plan.tensors.name, describe(args));
  const TensorRef& packed = require_role(p, Role::kWeightPacked);
  require_dtype(p, packed, {DType::kU8, DType::kI8});  // DeepSeek-V4 stores I8
  require_untransposed(p, packed);
  const Piece piece = matrix_piece(p.store, packed);
  set_dimensions(p, piece, piece.cols * 2);
  plan.code = CodeType::kFp4;
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_scales(p, {DType::kU8, DType::kF8E8M0});
  plan_activations(p);
  plan_bias(p);
  if (p.version == "0.13" || p.version.starts_with("0.13.")) {
    plan.layout = 2;
    plan.warning =
        "compressed-tensors 0.13 stored MXFP4 exponents 2 too small; they are corrected while "
        "loading";
  }
}

void fill_mxfp4_pack(const Loader& l, QuantMatrix& w) {
  load_codes(l, matrix_piece(l.store, l.plan.tensors[Role::kWeightPacked]), w);
  load_exponents(l, w, static_cast<unsigned>(l.plan.layout));
  load_plain_zero_points(l, w);
}

}  // namespace moebius
