// SPDX-License-Identifier: Apache-2.0
// Reads the formats whose codes are viewed as they are stored; each is a row of the table below:
//
//   dense                  BF16, F16 or F32 [N, K]; values may be anything, NaN included
//   int-quantized, float-quantized, naive-quantized
//                          I8 (whatever the declared width, sign-extended) or F8_E4M3 [N, K];
//                          scales by strategy; zero points I8, not packed
//   nvfp4-pack-quantized   two E2M1 codes per byte (U8 [N, K/2], low nibble first), an F8_E4M3 scale
//                          per 16 inputs, and a global scale (F32) that divides; inputs quantized the
//                          same way bring an input_global_scale
//   modelopt-nvfp4         the same in `weight`; weight_scale_2 and input_scale multiply
//   mxfp4-pack-quantized   two E2M1 codes per byte, an exponent byte per 32 inputs (U8 or F8_E8M0
//                          [N, K/32], 2^(e - 127)); version 0.13 of the writer stored exponents 2 too
//                          small: they are corrected in the buffer, and the plan says so
//   mxfp8-quantized        F8_E4M3 codes [N, K], exponent bytes as above
//   gpt-oss-mxfp4          `_blocks` U8 [E, R, K/32, 16], `_scales` U8 [E, R, K/32], `_bias` [E, R];
//                          in gate_up the rows alternate: references carry row_step 2
//   native-fp8             F8_E4M3 codes [N, K] and multiplying scales per block (the last may be
//                          short), per output, or for the matrix. Exponents are widened to F32 in the
//                          buffer: they are few, and the numbers are the same
#include <algorithm>
#include <cstring>

#include "base/numeric.h"
#include "checkpoint/formats/loading.h"
#include "checkpoint/formats/proofs.h"
#include "checkpoint/formats/readers.h"

namespace moebius {
namespace {

using Types = std::initializer_list<DType>;
constexpr Types kFp8 = {DType::kF8E4M3}, kBytes = {DType::kU8},
                kNibbles = {DType::kU8, DType::kI8},  // DeepSeek-V4 stores I8
    kFloats = {DType::kBf16, DType::kF16, DType::kF32}, kExponents = {DType::kU8, DType::kF8E8M0},
                kNativeScales = {DType::kF32, DType::kBf16, DType::kF16, DType::kF8E8M0,
                                 DType::kU8};
// Roles beside the codes and the bias.
constexpr RoleSet kNoRoles = {}, kScales = {Role::kWeightScale},
                  kNativeRoles = {Role::kWeightScale, Role::kInputScale},
                  kModeloptRoles = kNativeRoles | RoleSet{Role::kWeightGlobalScale},
                  kMxRoles = kNativeRoles | RoleSet{Role::kWeightZeroPoint, Role::kInputZeroPoint,
                                                    Role::kOutputScale, Role::kOutputZeroPoint},
                  kPlainRoles = kMxRoles | RoleSet{Role::kWeightGIdx, Role::kInputGlobalScale},
                  kNvfp4Roles =
                      kMxRoles | RoleSet{Role::kWeightGlobalScale, Role::kInputGlobalScale};

// Values of MatrixPlan::layout for native-fp8; for mxfp4 it is what is added to each exponent.
constexpr int kWidenExponents = 1;

bool float_groups(const QuantArgs& a, int bits, int64_t group) {
  return a.kind == NumberKind::kFloat && a.bits == bits && a.strategy == Strategy::kGroup &&
         a.group_size == group && a.symmetric;
}

struct StoredFormat {
  Format format;
  Role codes;
  CodeType code;  // kF32: that of the stored type
  Types types, scales;
  RoleSet roles;
  // Tells whether the declared weights are those of the format; null: any. `weights`: their name.
  bool (*holds)(const QuantArgs& weights) = nullptr;
  std::string_view weights = {};

  bool nibbles() const { return code == CodeType::kFp4; }
};

const StoredFormat kPlain = {
    Format::kIntQuantized, Role::kWeight, CodeType::kInt8, {}, kFloats, kPlainRoles};
const StoredFormat kFormats[] = {
    {Format::kDense, Role::kWeight, CodeType::kF32, kFloats, {}, kNoRoles},
    {Format::kNvfp4Pack, Role::kWeightPacked, CodeType::kFp4, kBytes, kFp8, kNvfp4Roles,
     [](const QuantArgs& a) { return is_nvfp4(a) || float_groups(a, 4, 16); },
     "symmetric 4-bit float weights in groups of 16"},
    {Format::kModeloptNvfp4, Role::kWeight, CodeType::kFp4, kBytes, kFp8, kModeloptRoles, is_nvfp4,
     "symmetric 4-bit float weights in groups of 16"},
    {Format::kMxfp4Pack, Role::kWeightPacked, CodeType::kFp4, kNibbles, kExponents, kMxRoles,
     [](const QuantArgs& a) { return float_groups(a, 4, 32); },
     "symmetric 4-bit float weights in groups of 32"},
    {Format::kMxfp8, Role::kWeight, CodeType::kFp8, kFp8, kExponents, kMxRoles,
     [](const QuantArgs& a) { return float_groups(a, 8, 32); },
     "symmetric 8-bit float weights in groups of 32"},
    {Format::kGptOssMxfp4, Role::kWeightPacked, CodeType::kFp4, kBytes, kExponents, kScales},
    {Format::kNativeFp8, Role::kWeight, CodeType::kFp8, kFp8, kNativeScales, kNativeRoles,
     [](const QuantArgs& a) { return a.kind == NumberKind::kFloat && a.bits == 8 && a.symmetric; },
     "symmetric 8-bit float weights"},
};

const StoredFormat& row_of(Format format) {
  for (const StoredFormat& f : kFormats)
    if (f.format == format) return f;
  return kPlain;
}

Piece codes_piece(const TensorStore& store, const MatrixPlan& plan) {
  const TensorRef& ref = plan.tensors[row_of(plan.scheme.format).codes];
  if (plan.scheme.format != Format::kGptOssMxfp4) return matrix_piece(store, ref);
  const std::vector<uint64_t> dims = slice_dims(store, ref);
  if (dims.size() != 3 || dims[0] == 0 || dims[1] == 0 || dims[2] != 16)
    wrong_tensor(store, *ref.info, "blocks of {}[rows, K/32, 16]",
                 ref.index < 0 ? "" : "experts x ");
  return make_piece(store, ref, dims[0], dims[1] * 16);
}

// Checks that the declared weights are those of the format.
void require_weights(const Planner& p, const StoredFormat& f) {
  const QuantArgs& args = weight_args(p);
  const std::string& name = p.plan.tensors.name;
  if (f.holds != nullptr && !f.holds(args))
    fail("{}: {} means {}, not {}", name, name_of(f.format), f.weights, describe(args));
  if (&f != &kPlain) return;
  const bool is_int = args.kind == NumberKind::kInt;
  if (is_int ? args.bits < 1 || args.bits > 8 : args.bits != 8)
    fail("{}: {}-bit {} weights; format {} holds integers of 1 to 8 bits and 8-bit floats", name,
         args.bits, is_int ? "int" : "float", name_of(p.plan.scheme.format));
}

GlobalScale modelopt_scale(const Planner& p, Role role, std::string_view suffix) {
  if (!p.ref(role))
    fail("{}: no tensor {}; format modelopt-nvfp4 needs it", p.plan.tensors.name, suffix);
  return {plan_global_scale(p, role), true};
}

// Plans what a format has beside codes, scales and the activations' parameters.
void plan_own(const Planner& p) {
  MatrixPlan& plan = p.plan;
  switch (plan.scheme.format) {
    case Format::kNvfp4Pack:
      plan.global_scale = {plan_global_scale(p, Role::kWeightGlobalScale)};
      break;
    case Format::kModeloptNvfp4:
      plan.global_scale = modelopt_scale(p, Role::kWeightGlobalScale, "weight_scale_2");
      // A file that quantizes weights alone may have an input_scale nevertheless; it is ignored.
      if (plan.scheme.input)
        plan.input.global_scale = modelopt_scale(p, Role::kInputScale, "input_scale");
      break;
    case Format::kNativeFp8:
      if (plan.scale_type != ScaleType::kE8m0) break;
      plan.layout = kWidenExponents;
      plan.scale_type = ScaleType::kF32;
      break;
    case Format::kMxfp4Pack:
      if (p.version != "0.13" && !p.version.starts_with("0.13.")) break;
      plan.layout = 2;
      plan.warning =
          "compressed-tensors 0.13 stored MXFP4 exponents 2 too small; they are corrected while "
          "loading";
      break;
    case Format::kIntQuantized:
    case Format::kFloatQuantized:
    case Format::kNaiveQuantized:
      plan_plain_zero_points(p);
      plan_g_idx(p);
      break;
    default:
      break;
  }
}

void widen_exponents(const Loader& l, QuantMatrix& w) {
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

}  // namespace

void prove_stored_codes(const Planner& p) {
  MatrixPlan& plan = p.plan;
  const Format format = plan.scheme.format;
  const StoredFormat& f = row_of(format);
  const bool dense = format == Format::kDense, gpt_oss = format == Format::kGptOssMxfp4;
  reject_other_roles(p, f.roles | RoleSet{f.codes, Role::kBias});
  plan.code = f.code;
  if (!dense && !gpt_oss) require_weights(p, f);
  if (&f == &kPlain && weight_args(p).kind != NumberKind::kInt) plan.code = CodeType::kFp8;
  const TensorRef& codes = require_role(p, f.codes);
  require_dtype(p, codes,
                &f != &kPlain                  ? f.types
                : plan.code == CodeType::kInt8 ? Types{DType::kI8}
                                               : kFp8);
  if (f.nibbles()) require_untransposed(p, codes);
  const Piece piece = codes_piece(p.store, plan);
  set_dimensions(p, piece, f.nibbles() ? piece.cols * 2 : piece.cols);
  plan.code_bytes = plan.N * piece.row_bytes();
  if (dense) {
    if (codes.info->dtype == DType::kBf16) plan.code = CodeType::kBf16;
    if (codes.info->dtype == DType::kF16) plan.code = CodeType::kF16;
    plan.block_n = plan.N;
    plan.block_k = plan.K;
  } else if (gpt_oss) {  // its tensors say all, without a scheme
    const TensorRef& scale = require_role(p, Role::kWeightScale);
    require_dtype(p, scale, f.scales);
    plan.scale_type = ScaleType::kE8m0;
    set_group(p, 32);
    plan.scale_bytes = plan.N * table_piece(p.store, plan, scale).row_bytes();
  } else {
    plan_scales(p, f.scales);
    plan_own(p);
    if (format != Format::kModeloptNvfp4) plan_activations(p);
  }
  plan_bias(p);
}

void fill_stored_codes(const Loader& l, QuantMatrix& w) {
  const Format format = l.plan.scheme.format;
  if (format == Format::kGptOssMxfp4) w.bits = 4;
  load_codes(l, codes_piece(l.store, l.plan), w);
  if (format == Format::kDense) return;
  const bool widen = format == Format::kNativeFp8 && l.plan.layout == kWidenExponents;
  const bool exponents = widen || w.scale_type == ScaleType::kE8m0;
  bool zero_scale = false;
  if (exponents)
    load_exponents(l, w, widen ? 0 : static_cast<unsigned>(l.plan.layout));
  else
    zero_scale = load_scales(l, w);
  load_plain_zero_points(l, w);
  load_g_idx(l, w);
  if (zero_scale) check_zero_scales(l, w);
  if (widen) widen_exponents(l, w);
}

}  // namespace moebius
