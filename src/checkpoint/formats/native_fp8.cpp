// SPDX-License-Identifier: Apache-2.0
// Reads format native-fp8: F8_E4M3 codes [N, K] and multiplying scales: one per block of outputs x
// inputs (the last blocks may be short), per output, or for the matrix. Scales are F32, BF16 or
// F16, or exponent bytes (F8_E8M0, U8: 2^(e - 127)), which are widened to F32 in the buffer: they
// are few, and the numbers are the same.
#include <cstring>

#include "base/numeric.h"
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {

void prove_native_fp8(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(p, {Role::kWeight, Role::kWeightScale, Role::kInputScale, Role::kBias});
  const QuantArgs& args = weight_args(p);
  if (args.kind != NumberKind::kFloat || args.bits != 8 || !args.symmetric)
    fail("{}: native-fp8 means symmetric 8-bit float weights, not {}", plan.tensors.name,
         describe(args));
  const TensorRef& weight = require_role(p, Role::kWeight);
  require_dtype(p, weight, {DType::kF8E4M3});
  const Piece piece = matrix_piece(p.store, weight);
  set_dimensions(p, piece, piece.cols);
  plan.code = CodeType::kFp8;
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_scales(p, {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E8M0, DType::kU8});
  if (plan.scale_type == ScaleType::kE8m0) {
    plan.layout = 1;  // exponents are widened to F32
    plan.scale_type = ScaleType::kF32;
  }
  plan_activations(p);
  plan_bias(p);
}

void fill_native_fp8(const Loader& l, QuantMatrix& w) {
  load_codes(l, matrix_piece(l.store, l.plan.tensors[Role::kWeight]), w);
  if (l.plan.layout == 0) {
    if (load_scales(l, w)) check_zero_scales(l, w);
    return;
  }
  load_exponents(l, w, 0);
  const size_t rows = (w.N + w.n_phase - 1) / w.block_n + 1;
  uint8_t* wide = l.buffer.allocate(rows * w.groups * sizeof(float));
  for (size_t r = 0; r < rows; ++r)
    for (size_t g = 0; g < w.groups; ++g) {
      const float s = e8m0_to_f32(w.scales[r * w.scale_stride + g]);
      std::memcpy(wide + (r * w.groups + g) * sizeof s, &s, sizeof s);
    }
  w.scales = wide;
  w.scale_stride = w.groups;
}

}  // namespace moebius
