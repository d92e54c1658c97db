// SPDX-License-Identifier: Apache-2.0
// Reads format mxfp8-quantized: F8_E4M3 codes [N, K], one exponent byte per 32 inputs (U8 or
// F8_E8M0 [N, K/32], 2^(e - 127)).
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {

void prove_mxfp8(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(
      p, {Role::kWeight, Role::kWeightScale, Role::kWeightZeroPoint, Role::kInputScale,
          Role::kInputZeroPoint, Role::kOutputScale, Role::kOutputZeroPoint, Role::kBias});
  const QuantArgs& args = weight_args(p);
  if (args.kind != NumberKind::kFloat || args.bits != 8 || args.strategy != Strategy::kGroup ||
      args.group_size != 32 || !args.symmetric)
    fail("{}: mxfp8-quantized means symmetric 8-bit float weights in groups of 32, not {}",
         plan.tensors.name, describe(args));
  const TensorRef& weight = require_role(p, Role::kWeight);
  require_dtype(p, weight, {DType::kF8E4M3});
  const Piece piece = matrix_piece(p.store, weight);
  set_dimensions(p, piece, piece.cols);
  plan.code = CodeType::kFp8;
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_scales(p, {DType::kU8, DType::kF8E8M0});
  plan_activations(p);
  plan_bias(p);
}

void fill_mxfp8(const Loader& l, QuantMatrix& w) {
  load_codes(l, matrix_piece(l.store, l.plan.tensors[Role::kWeight]), w);
  load_exponents(l, w, 0);
  load_plain_zero_points(l, w);
}

}  // namespace moebius
