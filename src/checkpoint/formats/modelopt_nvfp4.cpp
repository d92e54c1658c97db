// SPDX-License-Identifier: Apache-2.0
// Reads format modelopt-nvfp4: two E2M1 codes per byte (`weight` U8 [N, K/2], low nibble first),
// one F8_E4M3 scale per 16 inputs, and a global scale (weight_scale_2, F32) that multiplies. Inputs
// quantized the same way bring an input_scale, which multiplies too. Each module keeps its own.
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {
namespace {

GlobalScale factor(const Planner& p, Role role, std::string_view suffix) {
  if (!p.ref(role))
    fail("{}: no tensor {}; format modelopt-nvfp4 needs it", p.plan.tensors.name, suffix);
  return {plan_global_scale(p, role), true};
}

}  // namespace

void prove_modelopt_nvfp4(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(p, {Role::kWeight, Role::kWeightScale, Role::kWeightGlobalScale,
                         Role::kInputScale, Role::kBias});
  const QuantArgs& args = weight_args(p);
  if (!is_nvfp4(args))
    fail("{}: modelopt-nvfp4 means symmetric 4-bit float weights in groups of 16, not {}",
         plan.tensors.name, describe(args));
  const TensorRef& codes = require_role(p, Role::kWeight);
  require_dtype(p, codes, {DType::kU8});
  require_untransposed(p, codes);
  const Piece piece = matrix_piece(p.store, codes);
  set_dimensions(p, piece, piece.cols * 2);
  plan.code = CodeType::kFp4;
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_scales(p, {DType::kF8E4M3});
  plan.global_scale = factor(p, Role::kWeightGlobalScale, "weight_scale_2");
  // A file that quantizes weights alone may have an input_scale nevertheless; it is ignored.
  if (plan.scheme.input) plan.input.global_scale = factor(p, Role::kInputScale, "input_scale");
  plan_bias(p);
}

void fill_modelopt_nvfp4(const Loader& l, QuantMatrix& w) {
  load_codes(l, matrix_piece(l.store, l.plan.tensors[Role::kWeight]), w);
  load_scales(l, w);
}

}  // namespace moebius
