// SPDX-License-Identifier: Apache-2.0
// Maps routing methods to the numbers and names of other engines, whose results the router is compared with.
#pragma once
#include <string_view>

#include "base/error.h"
#include "nn/router.h"

namespace moebius::test {

// Numbers that inference engines use for routing methods: 0..9 and 100..102.
enum class RoutingMethod : int {
  kDefault = 0,
  kRenormalize = 1,
  kDeepseekV3 = 2,
  kLlama4 = 3,
  kRenormalizeNaive = 4,
  kTopK = 5,
  kSigmoidRenorm = 6,
  kMiniMax2 = 7,
  kSigmoid = 8,
  kUnspecified = 9,
  kDeepseekV4 = 100,
  kCustom = 101,
  kSimulated = 102,
};

struct RoutingParams {
  size_t experts = 0, top_k = 0;
  size_t groups = 0, topk_group = 0;
  float scaling = 1.0f;
  bool has_bias = false;    // kDeepseekV4 only: may be false
  bool from_table = false;  // kDeepseekV4 only: ids come from a table indexed by token id
  uint64_t seed = 0;        // kSimulated only
};

// Returns the parameters of a numbered method. Throws Error for kUnspecified, kCustom and unknown
// numbers.
inline RouterSpec from_routing_method(int method, const RoutingParams& p) {
  RouterSpec r;
  r.experts = p.experts;
  r.top_k = p.top_k;
  const auto bias_method = [&](Scoring scoring) {
    r.scoring = scoring;
    r.has_bias = true;
    r.renormalize = true;
    r.renormalize_epsilon = 1e-20f;
    r.scaling = p.scaling;
  };
  switch (static_cast<RoutingMethod>(method)) {
    case RoutingMethod::kDefault:
      return r;
    case RoutingMethod::kRenormalize:
      r.softmax_after_topk = true;
      return r;
    case RoutingMethod::kDeepseekV3:
      bias_method(Scoring::kSigmoid);
      r.groups = p.groups;
      r.topk_group = p.topk_group;
      r.group_score_top2 = p.groups > 0;
      return r;
    case RoutingMethod::kLlama4:
      r.scoring = Scoring::kSigmoid;
      r.select_on_logits = true;
      r.weight_on_input = true;
      return r;
    case RoutingMethod::kRenormalizeNaive:
      r.renormalize = true;
      return r;
    case RoutingMethod::kTopK:
      r.scoring = Scoring::kNone;
      return r;
    case RoutingMethod::kSigmoidRenorm:
      r.scoring = Scoring::kSigmoid;
      r.renormalize = true;
      return r;
    case RoutingMethod::kMiniMax2:
      bias_method(Scoring::kSigmoid);
      return r;
    case RoutingMethod::kSigmoid:
      r.scoring = Scoring::kSigmoid;
      return r;
    case RoutingMethod::kDeepseekV4:
      bias_method(Scoring::kSqrtSoftplus);
      r.renormalize_epsilon = 0.0f;
      r.has_bias = p.has_bias && !p.from_table;
      if (p.from_table) r.method = RouterMethod::kTable;
      return r;
    case RoutingMethod::kSimulated:
      r.method = RouterMethod::kSimulated;
      r.seed = p.seed;
      return r;
    case RoutingMethod::kUnspecified:
      fail("routing method 9 (unspecified) says nothing about how to route");
    case RoutingMethod::kCustom:
      fail("routing method 101 (custom) is a function of a model; describe it with a RouterSpec");
  }
  fail("unknown routing method {}; known: 0 to 8, 100, 102", method);
}

// Returns the number that an engine would give to the same settings, or kUnspecified.
inline RoutingMethod routing_method_of(const RouterSpec& r) {
  if (r.method == RouterMethod::kSimulated) return RoutingMethod::kSimulated;
  if (r.scoring == Scoring::kSqrtSoftplus)
    return r.renormalize ? RoutingMethod::kDeepseekV4 : RoutingMethod::kUnspecified;
  if (r.method != RouterMethod::kTopK || r.per_expert_scale || r.logit_cap > 0)
    return RoutingMethod::kCustom;
  if (r.softmax_after_topk) return RoutingMethod::kRenormalize;
  if (r.scoring == Scoring::kNone) return RoutingMethod::kTopK;
  if (r.has_bias) {
    if (r.scoring != Scoring::kSigmoid || !r.renormalize) return RoutingMethod::kUnspecified;
    return r.groups > 0 ? RoutingMethod::kDeepseekV3 : RoutingMethod::kMiniMax2;
  }
  if (r.scoring == Scoring::kSigmoid) {
    if (r.weight_on_input && r.select_on_logits) return RoutingMethod::kLlama4;
    return r.renormalize ? RoutingMethod::kSigmoidRenorm : RoutingMethod::kSigmoid;
  }
  return r.renormalize ? RoutingMethod::kRenormalizeNaive : RoutingMethod::kDefault;
}

inline std::string_view name_of(RoutingMethod method) {
  switch (method) {
    case RoutingMethod::kDefault:
      return "Default";
    case RoutingMethod::kRenormalize:
      return "Renormalize";
    case RoutingMethod::kDeepseekV3:
      return "DeepSeekV3";
    case RoutingMethod::kLlama4:
      return "Llama4";
    case RoutingMethod::kRenormalizeNaive:
      return "RenormalizeNaive";
    case RoutingMethod::kTopK:
      return "TopK";
    case RoutingMethod::kSigmoidRenorm:
      return "SigmoidRenorm";
    case RoutingMethod::kMiniMax2:
      return "MiniMax2";
    case RoutingMethod::kSigmoid:
      return "Sigmoid";
    case RoutingMethod::kUnspecified:
      return "Unspecified";
    case RoutingMethod::kDeepseekV4:
      return "DeepseekV4";
    case RoutingMethod::kCustom:
      return "Custom";
    case RoutingMethod::kSimulated:
      return "Simulated";
  }
  return "unknown";
}

}  // namespace moebius::test
