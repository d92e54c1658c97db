// SPDX-License-Identifier: Apache-2.0
// Proves dtype, rank and shape for every format. Order inside plan(): weight first (it fixes N and
// K), then granularity and scales, then companions. Products are formed only of numbers that a
// tensor of the file already bounds.
#include "checkpoint/formats/proofs.h"

#include <algorithm>

#include "base/checked.h"

namespace moebius {
namespace {

std::string dtype_list(std::initializer_list<DType> types) {
  std::string text;
  for (size_t i = 0; i < types.size(); ++i) {
    if (i > 0) text += i + 1 == types.size() ? " or " : ", ";
    text += name_of(types.begin()[i]);
  }
  return text;
}

// Returns a role's name with the spelling that most files of the format have: "weight_scale
// (scales)".
std::string spelled(Format format, Role role) {
  const std::string suffix(suffix_of(role));
  std::string_view other;
  if (is_turned(format) && role == Role::kWeightPacked) other = "qweight";
  if (is_turned(format) && role == Role::kWeightZeroPoint) other = "qzeros";
  if ((is_turned(format) || format == Format::kMlx) && role == Role::kWeightScale) other = "scales";
  if (format == Format::kMlx && role == Role::kWeightOffset) other = "biases";
  return other.empty() ? suffix : fmt::format("{} ({})", suffix, other);
}

void set_block(MatrixPlan& plan, const QuantArgs& args) {
  plan.block_n = static_cast<uint64_t>(args.block_n);
  plan.block_k = static_cast<uint64_t>(args.block_k);
  plan.groups = ceil_div(plan.K, plan.block_k);
  const TensorRef& scale = plan.tensors[Role::kWeightScale];
  if (scale && !is_whole(scale)) plan.n_phase = scale.row_begin % plan.block_n;
}

}  // namespace

ScaleType scale_type_of(DType t) {
  switch (t) {
    case DType::kF32:
      return ScaleType::kF32;
    case DType::kBf16:
      return ScaleType::kBf16;
    case DType::kF16:
      return ScaleType::kF16;
    case DType::kF8E4M3:
      return ScaleType::kFp8;
    default:
      return ScaleType::kE8m0;  // U8 and F8_E8M0 hold exponents
  }
}

CodeType packed_code(unsigned bits) {
  return bits == 4 ? CodeType::kInt4Offset : bits == 8 ? CodeType::kInt8Offset : CodeType::kInt8;
}

const TensorRef& require_role(const Planner& p, Role role) {
  const TensorRef& ref = p.ref(role);
  if (!ref)
    fail("{}: no tensor {}; format {} needs it", p.plan.tensors.name,
         spelled(p.plan.scheme.format, role), name_of(p.plan.scheme.format));
  return ref;
}

void reject_other_roles(const Planner& p, RoleSet known) {
  for (const Role role : kRoles) {
    const TensorRef& ref = p.ref(role);
    if (!ref || known.contains(role)) continue;
    fail("{} belongs to {}, but a {} module has no {}", p.store.where(*ref.info),
         p.plan.tensors.name, name_of(p.plan.scheme.format), suffix_of(role));
  }
}

void require_dtype(const Planner& p, const TensorRef& ref, std::initializer_list<DType> allowed) {
  if (std::find(allowed.begin(), allowed.end(), ref.info->dtype) == allowed.end())
    wrong_tensor(p.store, *ref.info, "dtype {} for {}", dtype_list(allowed),
                 name_of(p.plan.scheme.format));
}

void require_untransposed(const Planner& p, const TensorRef& ref) {
  if (ref.transposed)
    wrong_tensor(p.store, *ref.info, "codes packed along the inputs, not a transposed matrix");
}

void require_rows_of_codes(const Planner& p, const TensorRef& ref) {
  const TensorRef& codes = p.ref(Role::kWeightPacked);
  if (ref.row_begin != codes.row_begin || ref.row_count != codes.row_count ||
      ref.row_step != codes.row_step)
    wrong_tensor(p.store, *ref.info, "the outputs of {}: {} from {} on, not {} from {} on",
                 codes.info->name, codes.row_count, codes.row_begin, ref.row_count, ref.row_begin);
}

const QuantArgs& weight_args(const Planner& p) {
  if (!p.plan.scheme.weights)
    fail("{}: format {} needs a scheme with weights; the configuration has none",
         p.plan.tensors.name, name_of(p.plan.scheme.format));
  return *p.plan.scheme.weights;
}

uint64_t stored_rows(const MatrixPlan& plan) {
  const TensorRef& packed = plan.tensors[Role::kWeightPacked];
  const TensorRef& ref = packed ? packed : plan.tensors[Role::kWeight];
  const size_t leading = ref.index < 0 ? 0 : 1;
  const Format format = plan.scheme.format;
  const uint64_t rows = ref.info->shape[leading + (ref.transposed || has_columns(format) ? 1 : 0)];
  // AWQ: each word holds eight outputs; the tensor exists, so the product fits.
  return format == Format::kAwq || format == Format::kQuarkInt4 ? rows * 8 : rows;
}

void set_dimensions(const Planner& p, const Piece& weight, uint64_t K) {
  p.plan.N = weight.count;
  p.plan.K = K;
  if ((p.expected_N != 0 && p.expected_N != p.plan.N) || (p.expected_K != 0 && p.expected_K != K)) {
    const uint64_t N = p.expected_N != 0 ? p.expected_N : p.plan.N;
    fail("{} is {}, a matrix of {} x {}; expected {} x {} (outputs x inputs)",
         p.store.where(*weight.info), describe(*weight.info), p.plan.N, K, N,
         p.expected_K != 0 ? p.expected_K : K);
  }
}

void set_group(const Planner& p, uint64_t group) {
  const TensorRef& packed = p.ref(Role::kWeightPacked);
  if (p.plan.K % group != 0)
    wrong_tensor(p.store, *(packed ? packed : p.ref(Role::kWeight)).info,
                 "K divisible by the group size {}, but K is {}", group, p.plan.K);
  p.plan.block_n = 1;
  p.plan.block_k = group;
  p.plan.groups = p.plan.K / group;
}

void plan_scales(const Planner& p, std::initializer_list<DType> allowed) {
  const TensorRef& ref = require_role(p, Role::kWeightScale);
  require_dtype(p, ref, allowed);
  MatrixPlan& plan = p.plan;
  const QuantArgs& args = weight_args(p);
  plan.scale_type = scale_type_of(ref.info->dtype);
  switch (args.strategy) {
    case Strategy::kTensor:
      plan.block_n = plan.N;
      plan.block_k = plan.K;
      break;
    case Strategy::kChannel:
      plan.block_n = 1;
      plan.block_k = plan.K;
      break;
    case Strategy::kGroup:
    case Strategy::kTensorGroup:
      if (args.group_size <= 0)
        fail("{}: strategy {} needs a group size", plan.tensors.name, name_of(args.strategy));
      set_group(p, static_cast<uint64_t>(args.group_size));
      break;
    case Strategy::kBlock:
      if (args.block_n <= 0 || args.block_k <= 0)
        fail("{}: strategy block needs a block structure", plan.tensors.name);
      set_block(plan, args);
      break;
    default:
      fail("{}: strategy {} is not one of weights", plan.tensors.name, name_of(args.strategy));
  }
  const Piece piece = table_piece(p.store, plan, ref);
  plan.scale_bytes += piece.count * piece.row_bytes();
}

Piece table_piece(const TensorStore& store, const MatrixPlan& plan, const TensorRef& ref) {
  TensorRef blocks = ref;  // the same piece, counted in rows of blocks
  if (plan.scheme.weights && plan.scheme.weights->strategy == Strategy::kTensor) {
    blocks.index = static_cast<int64_t>(scalar_position(store, ref));
    blocks.row_begin = blocks.row_count = 0;
    blocks.row_step = 1;
    return make_piece(store, blocks, 1, 1);
  }
  const bool whole = is_whole(ref);
  // Selects one half of a table of scales for gate or up whose weights are stored apart.
  const TensorRef& packed = plan.tensors[Role::kWeightPacked];
  const bool apart = is_whole(packed ? packed : plan.tensors[Role::kWeight]);
  const uint64_t outputs = whole ? plan.N : apart ? 2 * ref.row_count : stored_rows(plan);
  const uint64_t rows = ceil_div(outputs, plan.block_n);
  const uint64_t cols = plan.groups;
  std::vector<uint64_t> dims = slice_dims(store, ref);
  const bool spread = plan.scheme.format == Format::kNativeFp8 && dims.size() == 4;
  // ModelOpt stores blocks with dimensions of 1 between
  if (spread && dims[1] == 1 && dims[3] == 1) dims = {dims[0], dims[2]};
  const std::vector<uint64_t> want =
      ref.transposed ? std::vector{cols, rows} : std::vector{rows, cols};
  if (dims != want && !(cols == 1 && dims == std::vector{rows})) {
    const std::string lead = ref.index < 0 ? "" : "one slice per expert of ";
    wrong_tensor(store, *ref.info, "{}{} for N={}, K={}{}", lead, describe_shape(want), outputs,
                 plan.K,
                 plan.scheme.weights ? ", " + describe(*plan.scheme.weights) : std::string());
  }
  if (!whole && plan.block_n > 1) {
    if (ref.row_step != 1)
      wrong_tensor(store, *ref.info,
                   "gate and up in halves: interleaved rows have no block scales");
    blocks.row_begin = ref.row_begin / plan.block_n;
    blocks.row_count = (ref.row_begin + plan.N - 1) / plan.block_n - blocks.row_begin + 1;
  }
  const Piece piece = make_piece(store, blocks, rows, cols);
  const uint64_t need = plan.block_n == 1 ? plan.N : ceil_div(plan.n_phase + plan.N, plan.block_n);
  if (piece.count != need)
    wrong_tensor(store, *ref.info, "{} rows of scales for the {} rows of the weight", need, plan.N);
  return piece;
}

void plan_plain_zero_points(const Planner& p) {
  const QuantArgs& args = weight_args(p);
  if (args.symmetric) return;  // zero points of older writers: a load checks that they are 0
  if (args.kind != NumberKind::kInt)
    fail("{}: float weights are declared asymmetric; zero points exist for integers only",
         p.plan.tensors.name);
  const TensorRef& ref = require_role(p, Role::kWeightZeroPoint);
  require_dtype(p, ref, {DType::kI8});
  const Piece piece = table_piece(p.store, p.plan, ref);
  p.plan.zero_points = true;
  p.plan.scale_bytes += piece.count * piece.row_bytes();
}

float plan_global_scale(const Planner& p, Role role) {
  const TensorRef& ref = require_role(p, role);
  require_dtype(p, ref, {DType::kF32});
  const float value = read_scalar(p.store, ref);
  if (!(value > 0.0f) || value > 3.402823466e38f)
    fail("{} is {}; expected a finite global scale above 0", p.store.where(*ref.info), value);
  p.plan.scale_bytes += 4;
  return value;
}

void plan_bias(const Planner& p) {
  const TensorRef& ref = p.ref(Role::kBias);
  if (!ref) return;
  require_dtype(p, ref, {DType::kBf16, DType::kF16, DType::kF32});
  const std::vector<uint64_t> dims = slice_dims(p.store, ref);
  const uint64_t rows = is_whole(ref) ? p.plan.N : stored_rows(p.plan);
  if (dims != std::vector{rows})
    wrong_tensor(p.store, *ref.info, "a bias of {}{}", describe_shape(std::vector{rows}),
                 ref.index < 0 ? "" : " per expert");
  const Piece piece = make_piece(p.store, ref, rows, 1);
  if (piece.count != p.plan.N)
    wrong_tensor(p.store, *ref.info, "{} wanted rows, as the weight has", p.plan.N);
}

}  // namespace moebius
