// SPDX-License-Identifier: Apache-2.0
#include "device/module_problem.h"

#include "base/error.h"
#include "device/load_options.h"
#include "kernels/packed_matrix.h"
#include "nn/int8_rows.h"
#include "quant/quant_access.h"
#include "quant/reference.h"

namespace moebius {
namespace {

Problem whole_problem(const Module& module, const ActSpec& act, XType x_type,
                      const ActRequest& request = {}) {
  return make_problem(with_zero_points(stored_facts(module, request), module.plan), act, x_type,
                      {module.plan.act_order, false});
}

bool rounds_head(const Module& module, const ActRequest& request) {
  return request.int8_head && is_dense_code(module.plan.code) &&
         (module.kind == ModuleKind::kLmHead || module.kind == ModuleKind::kEmbedding);
}

// Returns why this input type cannot run; null when it can. The whole module decides, not a rank's
// part: all ranks must agree.
const char* refusal_of(const Module& module, const ActSpec& act) {
  return portable_reason(whole_problem(module, act, XType::kF32));
}

}  // namespace

QuantMatrix with_zero_points(QuantMatrix facts, const MatrixPlan& plan) {
  static constexpr int8_t kSomeZeroPoint = 0;
  facts.zero_points = plan.zero_points ? &kSomeZeroPoint : nullptr;
  static constexpr uint8_t kSomeOffset = 0;
  facts.offsets = plan.offsets ? &kSomeOffset : nullptr;
  return facts;
}

QuantMatrix stored_facts(const Module& module, const ActRequest& request) {
  const QuantMatrix w = begin_view(module.plan);
  return rounds_head(module, request) ? int8_facts(w) : w;
}

XType activation_type(const std::string& option, const std::string& config_dtype) {
  const std::string& name = option.empty() || option == "auto" ? config_dtype : option;
  if (name == "bf16" || name == "bfloat16") return XType::kBf16;
  if (name == "f16" || name == "float16") return XType::kF16;
  if (name == "f32" || name == "float32" || name.empty()) return XType::kF32;
  fail("activation type '{}' is not known; expected auto, bf16, f16 or f32", printable(name));
}

ActSpec act_spec_of(const Module& module, const ActRequest& request) {
  const Scheme& scheme = module.plan.scheme;
  const bool is_static = scheme.input && scheme.input->dynamic == Dynamic::kStatic;
  // An uncalibrated input is used as it is.
  if (is_static && !module.plan.has_input_scale) return ActSpec{};
  const ActSpec act = act_spec_of(scheme, request);
  return departs(scheme, act) && refusal_of(module, act) != nullptr ? ActSpec{} : act;
}

std::string request_answer(const Module& module, const ActRequest& request) {
  if (rounds_head(module, request))
    return "int8 weights per output on request, not what the checkpoint declares";
  const ActSpec act = act_spec_of(module.plan.scheme, request);
  if (!departs(module.plan.scheme, act)) return "";
  if (const char* reason = refusal_of(module, act))
    return fmt::format("activations stay as declared: {}", reason);
  return "int8 rows on request, not what the checkpoint declares";
}

bool departs(const Module& module, const Problem& problem) {
  return departs(module.plan.scheme, problem.act) ||
         is_dense_code(module.plan.code) != is_dense_code(problem.code);
}

Numerics numerics_of(const Module& module, const Problem& problem, const Kernel& kernel) {
  return departs(module, problem) ? Numerics::kApproximate : kernel.numerics(problem);
}

void check_request(const Policy& policy, const ActRequest& request) {
  const char* what = request.int8_rows ? "activations" : "head-dtype";
  if ((request.int8_rows || request.int8_head) && policy.accept == Accept::kExact)
    fail_at({"argument", "", "", "", what},
            "int8 {} on request are approximate, and the policy asks for exact",
            request.int8_rows ? "activations" : "output weights");
}

Problem problem_of(const Module& module, const ActRequest& request, XType x_type) {
  return whole_problem(module, act_spec_of(module, request), x_type, request);
}

}  // namespace moebius
