// SPDX-License-Identifier: Apache-2.0
// Format mxfp8-quantized: F8_E4M3 codes [N, K], one exponent byte per 32 inputs (U8 or F8_E8M0 [N,
// K/32], 2^(e - 127)).
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {

MatrixPlan plan_mxfp8(const ModuleTensors& tensors, const Scheme& scheme, const TensorStore& store,
                      uint64_t expected_N, uint64_t expected_K, std::string_view version) {
  MatrixPlan plan;
  plan.tensors = tensors;
  plan.scheme = scheme;
  const Planner p{store, plan, expected_N, expected_K, version};
  reject_other_roles(
      p, {Role::kWeight, Role::kWeightScale, Role::kWeightZeroPoint, Role::kInputScale,
          Role::kInputZeroPoint, Role::kOutputScale, Role::kOutputZeroPoint, Role::kBias});
  const QuantArgs& args = weight_args(p);
  if (args.kind != NumberKind::kFloat || args.bits != 8 || args.strategy != Strategy::kGroup ||
      args.group_size != 32 || !args.symmetric)
    fail("{}: mxfp8-quantized means symmetric 8-bit float weights in groups of 32, not {}",
         tensors.name, describe(args));
  const TensorRef& weight = require_role(p, Role::kWeight);
  require_dtype(p, weight, {DType::kF8E4M3});
  const Piece piece = matrix_piece(store, weight);
  set_dimensions(p, piece, piece.cols);
  plan.code = CodeType::kFp8;
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_scales(p, {DType::kU8, DType::kF8E8M0});
  plan_activations(p);
  plan_bias(p);
  return plan;
}

QuantMatrix load_mxfp8(const MatrixPlan& plan, const TensorStore& store, LoadBuffer& buffer) {
  const Loader l{plan, store, buffer};
  QuantMatrix w = begin_view(plan);
  load_codes(l, matrix_piece(store, plan.tensors[Role::kWeight]), w);
  load_exponents(l, w, 0);
  load_plain_zero_points(l, w);
  return w;
}

}  // namespace moebius
