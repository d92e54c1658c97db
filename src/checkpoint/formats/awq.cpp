// SPDX-License-Identifier: Apache-2.0
// Reads AWQ: 4-bit codes in two layouts.
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

// Returns the words that hold the wanted outputs: for gate or up of one matrix, some of its words.
TensorRef words_of(const TensorStore& store, TensorRef ref, const MatrixPlan& plan) {
  if (is_gemv(plan)) return ref;
  if (ref.row_step != 1 || ref.row_begin % 8 != 0 || ref.row_count % 8 != 0)
    wrong_tensor(store, *ref.info,
                 "gate and up in halves of whole words: {} packs 8 outputs into a word, but {} "
                 "takes {} of every {} outputs from output {} on",
                 name_of(plan.scheme.format), plan.tensors.name, ref.row_count,
                 ref.row_count * ref.row_step, ref.row_begin);
  ref.row_begin /= 8;
  ref.row_count /= 8;
  return turned(ref);
}

uint64_t all_outputs(const MatrixPlan& plan) {
  return is_whole(plan.tensors[Role::kWeightPacked]) ? plan.N : stored_rows(plan);
}

// Plans the scales of a gemv table, whose words writers pad to 1, 2 or 4 by group size.
void plan_gemv_scales(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const TensorRef& ref = require_role(p, Role::kWeightScale);
  require_dtype(p, ref, {DType::kF16, DType::kBf16, DType::kF32});
  require_rows_of_codes(p, ref);
  set_short_groups(p);
  plan.scale_type = scale_type_of(ref.info->dtype);
  const std::vector<uint64_t> dims = slice_dims(p.store, ref);
  if (dims.size() != 2 || dims[0] != all_outputs(plan) || dims[1] % 8 != 0 || dims[1] < plan.groups)
    wrong_tensor(p.store, *ref.info, "{}[{}, a multiple of 8 from {} on]: {} groups per output",
                 ref.index < 0 ? "" : "one slice per expert of ", all_outputs(plan),
                 ceil_div(plan.groups, 8) * 8, plan.groups);
  plan.scale_bytes += plan.N * dims[1] * (bits_of(ref.info->dtype) / 8);
}

void plan_awq_zero_points(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const TensorRef& ref = p.ref(Role::kWeightZeroPoint);
  if (weight_args(p).symmetric && !ref) return;
  require_role(p, Role::kWeightZeroPoint);
  require_dtype(p, ref, {DType::kI32});
  require_rows_of_codes(p, ref);
  const uint64_t outputs = all_outputs(plan);
  const std::vector<uint64_t> want =
      is_gemv(plan) ? std::vector{outputs, slice_dims(p.store, p.ref(Role::kWeightScale))[1] / 8}
                    : std::vector{plan.groups, outputs / 8};
  if (slice_dims(p.store, ref) != want)
    wrong_tensor(p.store, *ref.info, "{}{} for the zero points of {} outputs in {} groups",
                 ref.index < 0 ? "" : "one slice per expert of ", describe_shape(want), outputs,
                 plan.groups);
  plan.zero_points = !weight_args(p).symmetric;
  plan.scale_bytes += want[0] * want[1] * 4 / outputs * plan.N;
}

// Loads zero points. Symmetric files may store them nevertheless: then each must be 8.
void load_awq_zero_points(const Loader& l, QuantMatrix& w) {
  const TensorRef& ref = l.plan.tensors[Role::kWeightZeroPoint];
  if (!ref) return;
  // In the layout gemm zero points are one row of words per group, for all outputs; in gemv they
  // are those of the wanted rows.
  TensorRef rows = ref;
  uint64_t first = 0;
  if (!is_gemv(l.plan)) {
    first = rows.row_begin;
    rows.row_begin = rows.row_count = 0;
  }
  const StoredRows words = read_rows(l.store, matrix_piece(l.store, rows), l.buffer);
  auto* values = reinterpret_cast<int8_t*>(l.buffer.allocate(w.N * w.groups));
  for (size_t r = 0; r < w.N; ++r)
    for (size_t g = 0; g < w.groups; ++g) {
      const size_t row = is_gemv(l.plan) ? r : g, column = is_gemv(l.plan) ? g : first + r;
      const size_t nibble = is_gemv(l.plan) ? column : column / 8 * 8 + kAwqNibble[column % 8];
      int z = unpack_one(words.data + row * words.stride, 4, nibble, 4, /*padded=*/false);
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
  const StoredRows words = read_rows(l.store, piece, l.buffer);  // transposed: [N/8, K] words
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
  require_as_stored(p);
  const QuantArgs& args = weight_args(p);
  if (args.kind != NumberKind::kInt || args.bits != 4)
    fail("{}: {} means 4-bit integer weights, not {}", plan.tensors.name,
         name_of(plan.scheme.format), describe(args));
  const TensorRef& packed = require_role(p, Role::kWeightPacked);
  require_dtype(p, packed, {DType::kI32});
  Piece piece = matrix_piece(p.store, words_of(p.store, packed, plan));
  plan.code = CodeType::kInt4Offset;
  plan.code_bytes = piece.count * piece.row_bytes();
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
  const Piece piece = matrix_piece(l.store, words_of(l.store, packed, l.plan));
  if (is_gemv(l.plan)) {
    load_codes(l, piece, w);
    const TensorRef& scales = l.plan.tensors[Role::kWeightScale];
    w.scales = load_finite(l, matrix_piece(l.store, scales), "scale", w);
  } else {
    load_gemm_codes(l, piece, w);
    load_turned_scales(l, w);
  }
  load_awq_zero_points(l, w);
}

}  // namespace moebius
