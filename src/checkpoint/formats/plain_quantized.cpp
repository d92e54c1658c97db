// SPDX-License-Identifier: Apache-2.0
// Reads formats int-quantized, float-quantized and naive-quantized: one byte per code in `weight`
// [N, K], I8 (whatever the declared width, sign-extended) or F8_E4M3; scales by strategy; zero
// points I8, not packed. The bytes are viewed as read.
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {

void prove_plain_quantized(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(
      p, {Role::kWeight, Role::kWeightScale, Role::kWeightZeroPoint, Role::kWeightGIdx,
          Role::kInputGlobalScale, Role::kInputScale, Role::kInputZeroPoint, Role::kOutputScale,
          Role::kOutputZeroPoint, Role::kBias});
  const QuantArgs& args = weight_args(p);
  const bool is_int = args.kind == NumberKind::kInt;
  if (is_int ? args.bits < 1 || args.bits > 8 : args.bits != 8)
    fail("{}: {}-bit {} weights; format {} holds integers of 1 to 8 bits and 8-bit floats",
         plan.tensors.name, args.bits, is_int ? "int" : "float", name_of(plan.scheme.format));
  const TensorRef& weight = require_role(p, Role::kWeight);
  require_dtype(p, weight, {is_int ? DType::kI8 : DType::kF8E4M3});
  const Piece piece = matrix_piece(p.store, weight);
  set_dimensions(p, piece, piece.cols);
  plan.code = is_int ? CodeType::kInt8 : CodeType::kFp8;
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_scales(p, {DType::kBf16, DType::kF16, DType::kF32});
  plan_plain_zero_points(p);
  plan_g_idx(p);
  plan_activations(p);
  plan_bias(p);
}

void fill_plain_quantized(const Loader& l, QuantMatrix& w) {
  load_codes(l, matrix_piece(l.store, l.plan.tensors[Role::kWeight]), w);
  const bool zero_scale = load_scales(l, w);
  load_plain_zero_points(l, w);
  load_g_idx(l, w);
  if (zero_scale) check_zero_scales(l, w);
}

}  // namespace moebius
