// SPDX-License-Identifier: Apache-2.0
// Checks the small tensors that plan() reads: weight_g_idx, and the static scales and zero points
// of inputs and outputs.
#include <algorithm>
#include <cmath>

#include "checkpoint/formats/proofs.h"

namespace moebius {
namespace {

// Refers to the stored parameters of one side (input or output) of a module.
struct Side {
  const std::optional<QuantArgs>& args;
  Role scale, zero_point;
  std::string_view name;
};

int read_small_zero_point(const Planner& p, const TensorRef& ref, const QuantArgs& args) {
  require_dtype(p, ref, {DType::kI8});
  uint8_t byte = 0;
  p.store.read(*ref.info, scalar_position(p.store, ref), {&byte, 1});
  const int value = static_cast<int8_t>(byte);
  const int half = args.bits >= 1 && args.bits <= 8 ? 1 << (args.bits - 1) : 128;
  if (value < -half || value >= half)
    fail("{} is {}; expected a {}-bit zero point in [{}, {}]", p.store.where(*ref.info), value,
         args.bits, -half, half - 1);
  return value;
}

// Requires a zero point of 0: older writers store zero points of symmetric quantization, in any
// type.
void require_zero(const Planner& p, const TensorRef& ref) {
  scalar_position(p.store, ref);
  uint8_t raw[8] = {};
  const uint64_t bytes = std::min<uint64_t>(bits_of(ref.info->dtype) / 8, sizeof raw);
  p.store.read(*ref.info, scalar_position(p.store, ref) * bytes, {raw, bytes});
  for (const uint8_t b : raw)
    if (b != 0)
      fail("{} is not 0, but the configuration declares symmetric quantization",
           p.store.where(*ref.info));
}

void plan_side(const Planner& p, const Side& side, ActParams& params, bool& has_scale) {
  const TensorRef& scale = p.ref(side.scale);
  const TensorRef& zero_point = p.ref(side.zero_point);
  if (!side.args || side.args->dynamic != Dynamic::kStatic) {
    for (const TensorRef* ref : {&scale, &zero_point})
      if (*ref)
        fail("{} is stored, but {} declares {}", p.store.where(*ref->info), p.plan.tensors.name,
             side.args ? fmt::format("dynamic {} quantization", side.name)
                       : fmt::format("no {} quantization", side.name));
    return;
  }
  if (!scale)
    fail("{}: no tensor {}; static {} quantization needs it", p.plan.tensors.name,
         suffix_of(side.scale), side.name);
  const float value = read_scalar(p.store, scale);
  // The scale 0 marks an uncalibrated input where inputs and outputs are fake-quantized (WNA8O8),
  // and is an error elsewhere.
  const bool uncalibrated = value == 0.0f && p.plan.scheme.input && p.plan.scheme.output;
  if (!uncalibrated && (!(value > 0.0f) || !std::isfinite(value)))
    fail("{} is {}; expected a finite scale above 0", p.store.where(*scale.info), value);
  has_scale = !uncalibrated;
  params.scale = uncalibrated ? 1.0f : value;
  if (side.args->symmetric || side.args->kind != NumberKind::kInt) {
    if (zero_point) require_zero(p, zero_point);
    return;
  }
  if (!zero_point)
    fail("{}: no tensor {}; asymmetric static {} quantization needs it", p.plan.tensors.name,
         suffix_of(side.zero_point), side.name);
  params.zero_point = read_small_zero_point(p, zero_point, *side.args);
}

void check_groups(const Planner& p, const TensorInfo& info, const std::vector<int32_t>& g_idx) {
  const uint64_t G = p.plan.groups;
  std::vector<uint64_t> columns(G, 0);
  for (size_t c = 0; c < g_idx.size(); ++c) {
    if (g_idx[c] < 0 || static_cast<uint64_t>(g_idx[c]) >= G)
      fail("{}[{}] is {}; expected a group in [0, {}]", p.store.where(info), c, g_idx[c], G - 1);
    ++columns[static_cast<size_t>(g_idx[c])];
  }
  for (uint64_t g = 0; g < G; ++g) {
    const uint64_t size = std::min(p.plan.block_k, p.plan.K - g * p.plan.block_k);
    if (columns[g] != size)
      fail("{}: group {} has {} columns; expected {}", p.store.where(info), g, columns[g], size);
  }
}

}  // namespace

std::vector<int32_t> read_g_idx(const TensorStore& store, const MatrixPlan& plan) {
  const TensorRef& ref = plan.tensors[Role::kWeightGIdx];
  std::vector<int32_t> values(plan.K);
  const uint64_t at = ref.index > 0 ? static_cast<uint64_t>(ref.index) * plan.K * 4 : 0;
  store.read(*ref.info, at, {reinterpret_cast<uint8_t*>(values.data()), plan.K * 4});
  for (const int32_t v : values)
    if (v == -1) return {};
  return values;
}

std::optional<bool> reads_reordered(const Planner& p) {
  const TensorRef& ref = p.ref(Role::kWeightGIdx);
  require_dtype(p, ref, {DType::kI32});
  if (slice_dims(p.store, ref) != std::vector{p.plan.K})
    wrong_tensor(p.store, *ref.info, "{}{}", describe_shape(std::vector{p.plan.K}),
                 ref.index < 0 ? "" : " per expert");
  const std::vector<int32_t> g_idx = read_g_idx(p.store, p.plan);
  if (g_idx.empty()) return std::nullopt;
  p.plan.scale_bytes += p.plan.K * 4;
  check_groups(p, *ref.info, g_idx);
  for (size_t c = 0; c < g_idx.size(); ++c)
    if (static_cast<uint64_t>(g_idx[c]) != c / p.plan.block_k) return true;
  return false;
}

void plan_g_idx(const Planner& p) {
  const TensorRef& ref = p.ref(Role::kWeightGIdx);
  if (!ref) return;
  const QuantArgs& args = weight_args(p);
  if (args.strategy != Strategy::kGroup && args.strategy != Strategy::kTensorGroup)
    fail("{} is stored, but the weights have no groups (strategy {})", p.store.where(*ref.info),
         name_of(args.strategy));
  p.plan.act_order = reads_reordered(p).value_or(false);
  if (p.plan.act_order && args.act_order != ActOrder::kGroup)
    fail("{} reorders columns, but the configuration does not declare actorder group",
         p.store.where(*ref.info));
}

void plan_activations(const Planner& p) {
  MatrixPlan& plan = p.plan;
  if (plan.scheme.input && is_nvfp4(*plan.scheme.input)) {
    plan.input.global_scale = {plan_global_scale(p, Role::kInputGlobalScale)};
    for (const Role role : {Role::kInputScale, Role::kInputZeroPoint})
      if (p.ref(role))
        fail("{} is stored, but {} declares block scales under a global scale",
             p.store.where(*p.ref(role).info), plan.tensors.name);
  } else {
    if (p.ref(Role::kInputGlobalScale))
      fail("{} is stored, but {} declares no NVFP4 input quantization",
           p.store.where(*p.ref(Role::kInputGlobalScale).info), plan.tensors.name);
    plan_side(p, {plan.scheme.input, Role::kInputScale, Role::kInputZeroPoint, "input"}, plan.input,
              plan.has_input_scale);
  }
  plan_side(p, {plan.scheme.output, Role::kOutputScale, Role::kOutputZeroPoint, "output"},
            plan.output, plan.has_output_scale);
}

}  // namespace moebius
