// SPDX-License-Identifier: Apache-2.0
// Reads format dense: a plain weight [N, K] in BF16, F16 or F32, viewed as read. Values may be
// anything, NaN included.
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {

void prove_dense(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(p, {Role::kWeight, Role::kBias});
  const TensorRef& weight = require_role(p, Role::kWeight);
  require_dtype(p, weight, {DType::kBf16, DType::kF16, DType::kF32});
  const Piece piece = matrix_piece(p.store, weight);
  set_dimensions(p, piece, piece.cols);
  plan.code = weight.info->dtype == DType::kBf16  ? CodeType::kBf16
              : weight.info->dtype == DType::kF16 ? CodeType::kF16
                                                  : CodeType::kF32;
  plan.block_n = plan.N;
  plan.block_k = plan.K;
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_bias(p);
}

void fill_dense(const Loader& l, QuantMatrix& w) {
  load_codes(l, matrix_piece(l.store, l.plan.tensors[Role::kWeight]), w);
}

}  // namespace moebius
