// SPDX-License-Identifier: Apache-2.0
// Parses FBGEMM FP8 (quant_method fbgemm_fp8): E4M3 weights with a scale per output, inputs per
// token; a scale counts magnitudes up to activation_scale_ub, and larger inputs are clamped.
#include "checkpoint/formats/piece.h"
#include "checkpoint/methods/schemes.h"
#include "checkpoint/methods/skip_list.h"

namespace moebius {
namespace {

class FbgemmRules : public MethodRules {
 public:
  float bound = 1200.0f;
  SkipList skip;

  SchemeDecision decide(const StoredModule& m) const override {
    const TensorRef& weight = m.tensors[Role::kWeight];
    if (!weight) fail("{}: no tensor weight; method fbgemm_fp8 needs it", m.name);
    if (!m.tensors[Role::kWeightScale])
      wrong_tensor(m.store, *weight.info,
                   "its scale beside it: no tensor weight_scale belongs to {}", m.name);
    return decided(declared(m.name), "fbgemm_fp8");
  }
  Scheme declared(std::string_view) const override {
    Scheme s;
    s.format = Format::kNativeFp8;
    s.weights = float_args(8, Strategy::kChannel);
    s.input = float_args(8, Strategy::kToken, 0, Dynamic::kDynamic);
    s.input->bound = bound;
    return s;
  }
  std::string dense_by(std::string_view module) const override { return skip.entry_for(module); }
  bool lists_dense() const override { return skip.stated(); }
};

}  // namespace

void parse_fbgemm_fp8(const MethodConfig& c) {
  const QuantFields f(c.section, c.out.path, c.context,
                      "quant_method activation_scale_ub modules_to_not_convert");
  auto rules = std::make_shared<FbgemmRules>();
  if (const Json* v = f.find("activation_scale_ub")) {
    const double value = v->is_number() ? v->as_double() : 0.0;
    if (!(value > 0.0) || value > 3e38)
      f.reject("activation_scale_ub", "expected a finite number above 0");
    rules->bound = static_cast<float>(value);
  }
  rules->skip = SkipList(f, {"modules_to_not_convert"}, SkipSyntax::kPaths);
  c.out.rules = std::move(rules);
}

}  // namespace moebius
