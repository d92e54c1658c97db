// SPDX-License-Identifier: Apache-2.0
// Reads format pack-quantized: integer codes of 1 to 8 bits in 32-bit words (unpack.h),
// weight_packed I32 [N, words], weight_shape (N, K), scales by strategy, zero points packed along
// the rows (I32) or plain (I8), optional weight_g_idx. Rows of 4 and 8 bits are viewed as read;
// other widths are unpacked to one signed byte per code.
#include "base/checked.h"
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"
#include "checkpoint/formats/unpack.h"
#include "checkpoint/quant_args_parse.h"

namespace moebius {
namespace {

// Values of MatrixPlan::layout for this reader.
enum : int { kRowsPadded = 1, kZeroPointsPacked = 2, kZeroPointsPadded = 4 };

// Returns whether this version of the writer padded odd widths to whole words, as versions before
// 0.18 did. Used only where the row length does not tell.
bool writer_pads(std::string_view version) {
  const std::optional<std::pair<int, int>> writer = parse_version(version);
  return writer && *writer < std::pair(0, 18);
}

struct Shape {
  uint64_t N = 0, K = 0;
};

// Returns weight_shape as (N, K), or nothing when it is missing or zero. It is stored as [2], [3]
// (experts first) or [experts, 2].
std::optional<Shape> read_weight_shape(const Planner& p) {
  const TensorRef& ref = p.ref(Role::kWeightShape);
  if (!ref) return std::nullopt;
  require_dtype(p, ref, {DType::kI64, DType::kI32});
  const std::vector<uint64_t>& dims = ref.info->shape;
  const uint64_t expert = ref.index < 0 ? 0 : static_cast<uint64_t>(ref.index);
  uint64_t first = 0;
  if (dims == std::vector<uint64_t>{3} && ref.index >= 0) {
    first = 1;
  } else if (ref.index >= 0 && dims.size() == 2 && dims[1] == 2 && expert < dims[0]) {
    first = 2 * expert;
  } else if (dims != std::vector<uint64_t>{2}) {
    wrong_tensor(p.store, *ref.info, "[2]: outputs, inputs");
  }
  const std::vector<int64_t> values = read_integers(p.store, *ref.info, first, 2);
  if (values[0] == 0 && values[1] == 0) return std::nullopt;
  if (values[0] <= 0 || values[1] <= 0)
    fail("{} holds ({}, {}); expected outputs and inputs above 0", p.store.where(*ref.info),
         values[0], values[1]);
  return Shape{static_cast<uint64_t>(values[0]), static_cast<uint64_t>(values[1])};
}

// Returns K: from weight_shape, else from the architecture, else from the words themselves.
uint64_t find_k(const Planner& p, const Piece& packed, unsigned bits) {
  const std::optional<Shape> shape = read_weight_shape(p);
  if (shape) {
    const TensorInfo& info = *p.ref(Role::kWeightShape).info;
    if (shape->N != packed.rows)
      fail("{} holds ({}, {}), but {} is {}; expected the same number of rows", p.store.where(info),
           shape->N, shape->K, packed.info->name, describe(*packed.info));
    if (p.expected_K != 0 && shape->K != p.expected_K)
      fail("{} holds ({}, {}); expected {} inputs", p.store.where(info), shape->N, shape->K,
           p.expected_K);
    return shape->K;
  }
  if (p.expected_K != 0) return p.expected_K;
  if (32 % bits != 0)
    fail("{}: no usable weight_shape; {}-bit rows of {} words do not tell K",
         p.store.where(*packed.info), bits, packed.cols);
  return packed.cols * (32 / bits);
}

// Returns whether `words` hold n codes in the padded layout rather than the dense one; throws when
// they fit neither.
bool is_padded(const Planner& p, const TensorInfo& info, uint64_t words, uint64_t n, unsigned bits,
               bool if_equal, std::string_view what) {
  // A code has at least 1 bit, so more codes cannot fit.
  const uint64_t dense = n <= words * 32 ? dense_words(n, bits) : 0;
  const uint64_t padded = padded_words(n, bits);
  if (words == dense && words == padded) return if_equal && 32 % bits != 0;
  if (words == dense) return false;
  if (words == padded) return true;
  if (dense == 0) wrong_tensor(p.store, info, "more words for {} {}-bit {}", n, bits, what);
  wrong_tensor(p.store, info, "{}{} words for {} {}-bit {}", dense,
               dense == padded ? "" : fmt::format(" (or, padded, {})", padded), n, bits, what);
}

void plan_zero_points(const Planner& p, unsigned bits, bool rows_decide) {
  const TensorRef& ref = p.ref(Role::kWeightZeroPoint);
  MatrixPlan& plan = p.plan;
  if (!ref || ref.info->dtype != DType::kI32) {
    plan_plain_zero_points(p);
    return;
  }
  if (weight_args(p).strategy == Strategy::kTensor || weight_args(p).strategy == Strategy::kBlock)
    wrong_tensor(p.store, *ref.info, "plain I8 zero points for strategy {}",
                 name_of(weight_args(p).strategy));
  require_untransposed(p, ref);
  require_rows_of_codes(p, ref);
  const std::vector<uint64_t> dims = slice_dims(p.store, ref);
  const uint64_t rows = is_whole(ref) ? plan.N : stored_rows(plan);
  const bool vector = dims.size() == 1 && plan.groups == 1;
  if ((dims.size() != 2 && !vector) || dims[0] == 0 || (!vector && dims[1] != plan.groups))
    wrong_tensor(p.store, *ref.info, "{}[{}, {}]: zero points packed along {} rows",
                 ref.index < 0 ? "" : "one slice per expert of ", dense_words(rows, bits),
                 plan.groups, rows);
  const bool padded =
      is_padded(p, *ref.info, dims[0], rows, bits,
                rows_decide ? (plan.layout & kRowsPadded) != 0 : writer_pads(p.version),
                "zero points along the rows");
  plan.layout |= kZeroPointsPacked | (padded ? kZeroPointsPadded : 0);
  plan.zero_points = !weight_args(p).symmetric;
  plan.scale_bytes += dims[0] * plan.groups * 4;
}

void load_packed_zero_points(const Loader& l, QuantMatrix& w) {
  const TensorRef& ref = l.plan.tensors[Role::kWeightZeroPoint];
  const std::vector<uint64_t> dims = slice_dims(l.store, ref);
  TensorRef whole = ref;
  whole.row_begin = whole.row_count = 0;
  whole.row_step = 1;
  const Piece piece = make_piece(l.store, whole, dims[0], l.plan.groups);
  const StoredRows words = read_rows(l.store, piece, l.buffer);
  const unsigned bits = w.bits;
  const bool padded = (l.plan.layout & kZeroPointsPadded) != 0;
  auto* values = reinterpret_cast<int8_t*>(l.buffer.allocate(w.N * w.groups));
  bool any = false;
  for (size_t r = 0; r < w.N; ++r) {
    const size_t row = ref.row_begin + r * ref.row_step;
    for (size_t g = 0; g < w.groups; ++g) {
      const int8_t zp = unpack_one(words.data + 4 * g, words.stride, row, bits, padded);
      values[r * w.groups + g] = zp;
      any = any || zp != 0;
    }
  }
  if (l.plan.zero_points) {
    attach_zero_points(l, values, w);
  } else if (any) {
    fail("{} is not all 0, but the configuration declares symmetric weights",
         l.store.where(*ref.info));
  }
}

}  // namespace

void prove_pack_quantized(const Planner& p) {
  MatrixPlan& plan = p.plan;
  reject_other_roles(
      p, {Role::kWeightPacked, Role::kWeightScale, Role::kWeightZeroPoint, Role::kWeightGIdx,
          Role::kWeightShape, Role::kInputGlobalScale, Role::kInputScale, Role::kInputZeroPoint,
          Role::kOutputScale, Role::kOutputZeroPoint, Role::kBias});
  const QuantArgs& args = weight_args(p);
  if (args.kind != NumberKind::kInt || args.bits < 1 || args.bits > 8)
    fail("{}: pack-quantized means integer weights of 1 to 8 bits, not {}", plan.tensors.name,
         describe(args));
  const auto bits = static_cast<unsigned>(args.bits);
  const TensorRef& packed = require_role(p, Role::kWeightPacked);
  require_dtype(p, packed, {DType::kI32});
  require_untransposed(p, packed);
  const Piece piece = matrix_piece(p.store, packed);
  const uint64_t K = find_k(p, piece, bits);
  const bool padded = is_padded(p, *packed.info, piece.cols, K, bits, writer_pads(p.version),
                                fmt::format("codes in each of {} rows", piece.rows));
  set_dimensions(p, piece, K);
  plan.layout = padded ? kRowsPadded : 0;
  plan.code = packed_code(bits);
  plan.code_bytes = plan.N * piece.row_bytes();
  plan_scales(p, {DType::kBf16, DType::kF16, DType::kF32});
  plan_zero_points(p, bits, dense_words(K, bits) != padded_words(K, bits));
  plan_g_idx(p);
  plan_activations(p);
  plan_bias(p);
}

void fill_pack_quantized(const Loader& l, QuantMatrix& w) {
  const Piece piece = matrix_piece(l.store, l.plan.tensors[Role::kWeightPacked]);
  load_packed_codes(l, piece, (l.plan.layout & kRowsPadded) != 0, w);
  const bool zero_scale = load_scales(l, w);
  if ((l.plan.layout & kZeroPointsPacked) != 0)
    load_packed_zero_points(l, w);
  else
    load_plain_zero_points(l, w);
  load_g_idx(l, w);
  if (zero_scale) check_zero_scales(l, w);
}

}  // namespace moebius
