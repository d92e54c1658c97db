// SPDX-License-Identifier: Apache-2.0
// AWQ: 4-bit codes in two layouts.
//
//   gemm   qweight I32 [K, N/8]   output 8j+t is nibble {0,4,1,5,2,6,3,7}[t] of word j
//          qzeros  I32 [G, N/8]   in the same order;    scales F16 [G, N]
//   Quark's int4 is gemm whose codes and zero points are in two's complement: -8..7 instead of 0..15
//   gemv   qweight I32 [N, K/8]   in order: the rows of pack-quantized
//          qzeros  I32 [N, W]     in order along the groups; scales F16 [N, 8W]; W >= G/8 is padding
//
//   w(n,k) = (code - zero point) * scale, both of 0..15; no qzeros: the zero point is 8
#include "base/checked.h"
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/readers.h"
#include "checkpoint/formats/turned.h"
#include "checkpoint/formats/unpack.h"

namespace moebius {
namespace {

bool is_gemv(const MatrixPlan& plan) { return plan.scheme.format == Format::kAwqGemv; }
bool is_signed(const MatrixPlan& plan) { return plan.scheme.format == Format::kQuarkInt4; }

void require_whole(const Planner& p) {
  for (const TensorRef& ref : p.plan.tensors.by_role)
    if (ref && (!is_whole(ref) || ref.index >= 0))
      wrong_tensor(p.store, *ref.info, "one matrix: {} packs outputs together",
                   name_of(p.plan.scheme.format));
}

// Words of a gemv table beside `groups`; writers pad them to 1, 2 or 4 by group size.
void plan_gemv_scales(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const TensorRef& ref = require_role(p, Role::kWeightScale);
  require_dtype(p, ref, {DType::kF16, DType::kBf16, DType::kF32});
  set_short_groups(p);
  plan.scale_type = scale_type_of(ref.info->dtype);
  const std::vector<uint64_t>& dims = ref.info->shape;
  if (dims.size() != 2 || dims[0] != plan.N || dims[1] % 8 != 0 || dims[1] < plan.groups)
    wrong_tensor(p.store, *ref.info, "[{}, a multiple of 8 from {} on]: {} groups per output",
                 plan.N, ceil_div(plan.groups, 8) * 8, plan.groups);
  plan.scale_bytes += ref.info->bytes;
}

void plan_awq_zero_points(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const TensorRef& ref = p.ref(Role::kWeightZeroPoint);
  if (weight_args(p).symmetric && !ref) return;
  require_role(p, Role::kWeightZeroPoint);
  require_dtype(p, ref, {DType::kI32});
  const std::vector<uint64_t> want =
      is_gemv(plan) ? std::vector{plan.N, p.ref(Role::kWeightScale).info->shape[1] / 8}
                    : std::vector{plan.groups, plan.N / 8};
  if (ref.info->shape != want)
    wrong_tensor(p.store, *ref.info, "{} for the zero points of {} outputs in {} groups",
                 describe_shape(want), plan.N, plan.groups);
  plan.zero_points = !weight_args(p).symmetric;
  plan.scale_bytes += ref.info->bytes;
}

// Symmetric files may carry zero points all the same: each must be 8.
void load_awq_zero_points(const Loader& l, QuantMatrix& w) {
  const TensorRef& ref = l.plan.tensors[Role::kWeightZeroPoint];
  if (!ref) return;
  const Piece piece = make_piece(l.store, ref, ref.info->shape[0], ref.info->shape[1]);
  const StoredRows words = read_rows(l.store, piece, l.buffer);
  auto* values = reinterpret_cast<int8_t*>(l.buffer.allocate(w.N * w.groups));
  for (size_t r = 0; r < w.N; ++r)
    for (size_t g = 0; g < w.groups; ++g) {
      const size_t row = is_gemv(l.plan) ? r : g, column = is_gemv(l.plan) ? g : r;
      const size_t nibble = is_gemv(l.plan) ? column : column / 8 * 8 + kAwqNibble[column % 8];
      int z = unpack_one(words.data + row * words.stride, 4, nibble, 4, false);
      if (is_signed(l.plan)) z = z < 0 ? z + 8 : z - 8;
      const int zero = is_signed(l.plan) ? 0 : 8;  // as stored
      if (z != 0 && !l.plan.zero_points)
        fail(
            "{} holds {} for output {}, group {}, but the configuration says no zero points; "
            "expected {}",
            l.store.where(*ref.info), z + zero, r, g, zero);
      values[r * w.groups + g] = static_cast<int8_t>(z);
    }
  if (l.plan.zero_points) attach_zero_points(l, values, w);
}

void load_gemm_codes(const Loader& l, const Piece& piece, QuantMatrix& w) {
  const StoredRows words = read_rows(l.store, piece, l.buffer);  // turned: [N/8, K] words
  w.row_bytes = ceil_div(w.K, 2);
  uint8_t* codes = l.buffer.allocate(w.N * w.row_bytes);
  for (size_t j = 0; j < w.N / 8; ++j)
    turn_nibbles(words.data + j * words.stride, w.K, codes + 8 * j * w.row_bytes, w.row_bytes);
  if (is_signed(l.plan))
    for (size_t i = 0; i < w.N * w.row_bytes; ++i) codes[i] ^= 0x88;
  w.codes = codes;
}

}  // namespace

void prove_awq(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(
      p, {Role::kWeightPacked, Role::kWeightScale, Role::kWeightZeroPoint, Role::kBias});
  require_whole(p);
  require_as_stored(p);
  const QuantArgs& args = weight_args(p);
  if (args.kind != NumberKind::kInt || args.bits != 4)
    fail("{}: {} means 4-bit integer weights, not {}", plan.tensors.name,
         name_of(plan.scheme.format), describe(args));
  const TensorRef& packed = require_role(p, Role::kWeightPacked);
  require_dtype(p, packed, {DType::kI32});
  Piece piece = matrix_piece(p.store, is_gemv(plan) ? packed : turned(packed));
  plan.code = CodeType::kInt4Offset;
  plan.code_bytes = packed.info->bytes;
  if (is_gemv(plan)) {
    set_dimensions(p, piece, piece.cols * 8);
    plan_gemv_scales(p);
  } else {
    piece.count *= 8;
    set_dimensions(p, piece, piece.cols);
    plan_turned_scales(p);
  }
  plan_awq_zero_points(p);
  plan_bias(p);
}

void fill_awq(const Loader& l, QuantMatrix& w) {
  const TensorRef& packed = l.plan.tensors[Role::kWeightPacked];
  const Piece piece = matrix_piece(l.store, is_gemv(l.plan) ? packed : turned(packed));
  if (is_gemv(l.plan)) {
    load_codes(l, piece, w);
    const TensorRef& scales = l.plan.tensors[Role::kWeightScale];
    load_signed_scales(l, matrix_piece(l.store, scales), w);
  } else {
    load_gemm_codes(l, piece, w);
    load_signed_scales(l, w);
  }
  load_awq_zero_points(l, w);
}

}  // namespace moebius
