// SPDX-License-Identifier: Apache-2.0
// Reads GPT-OSS's own MXFP4 storage: `_blocks` U8 [E, R, K/32, 16] (32 E2M1 codes, low nibble
// first), `_scales` U8 [E, R, K/32], `_bias` [E, R]. In gate_up the rows alternate (even gate, odd
// up): the references carry row_step 2 and the view skips rows.
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {
namespace {

Piece blocks_piece(const TensorStore& store, const TensorRef& ref) {
  const std::vector<uint64_t> dims = slice_dims(store, ref);
  if (dims.size() != 3 || dims[0] == 0 || dims[1] == 0 || dims[2] != 16)
    wrong_tensor(store, *ref.info, "blocks of {}[rows, K/32, 16]",
                 ref.index < 0 ? "" : "experts x ");
  return make_piece(store, ref, dims[0], dims[1] * 16);
}

}  // namespace

void prove_gpt_oss_mxfp4(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(p, {Role::kWeightPacked, Role::kWeightScale, Role::kBias});
  const TensorRef& packed = require_role(p, Role::kWeightPacked);
  require_dtype(p, packed, {DType::kU8});
  require_untransposed(p, packed);
  const Piece piece = blocks_piece(p.store, packed);
  set_dimensions(p, piece, piece.cols * 2);
  plan.code = CodeType::kFp4;
  plan.code_bytes = plan.N * piece.row_bytes();
  const TensorRef& scale = require_role(p, Role::kWeightScale);
  require_dtype(p, scale, {DType::kU8, DType::kF8E8M0});
  plan.scale_type = ScaleType::kE8m0;
  set_group(p, 32);
  plan.scale_bytes = plan.N * table_piece(p.store, plan, scale).row_bytes();
  plan_bias(p);
}

void fill_gpt_oss_mxfp4(const Loader& l, QuantMatrix& w) {
  w.bits = 4;
  load_codes(l, blocks_piece(l.store, l.plan.tensors[Role::kWeightPacked]), w);
  load_exponents(l, w, 0);
}

}  // namespace moebius
