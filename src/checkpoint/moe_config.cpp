// SPDX-License-Identifier: Apache-2.0
// Reads the mixture-of-experts part of config.json: counts, widths, layers with experts, and the
// router's parameters. The registry (families.h) names a family's rules, and this file defines what
// each rule means.
#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "checkpoint/config_fields.h"
#include "checkpoint/families.h"
#include "checkpoint/model_config.h"

namespace moebius {
namespace {

constexpr int64_t kMaxExperts = 65536;
constexpr int64_t kMaxMoeSize = int64_t{1} << 31;

float as_float(const ConfigFields& f, ConfigFields::Names names, float fallback) {
  const auto value = f.number(names);
  if (!value) return fallback;
  const auto narrowed = static_cast<float>(*value);
  if (!std::isfinite(narrowed))
    fail("{} is {}; expected a number that fits 32-bit floats", f.label(*names.begin()), *value);
  return narrowed;
}

// Returns a field's value, which some exporters write once per layer; 0 where the layers differ and
// `strict` is false.
std::optional<int64_t> same_in_all_layers(const ModelConfig& c, const ConfigFields& f,
                                          std::string_view name, int64_t high, bool strict) {
  const Json* value = c.text.find(name);
  if (value == nullptr || !value->is_array()) return f.integer({name}, 1, high);
  const auto all = f.integers({name}, 1, high);
  if (!all.empty() && std::all_of(all.begin(), all.end(), [&](int64_t v) { return v == all[0]; }))
    return all[0];
  if (strict) fail("{} differs from layer to layer; expected one value", f.label(name));
  return 0;
}

int64_t expert_width(const ModelConfig& c, const ConfigFields& f, const Family* family) {
  if (family != nullptr && family->routing == RoutingRule::kLlama4)
    return f.require({"intermediate_size"}, 1, kMaxMoeSize);
  if (const auto v =
          same_in_all_layers(c, f, "moe_intermediate_size", kMaxMoeSize, !lenient(family)))
    return *v;
  if (const auto v =
          f.integer({"expert_intermediate_size", "moe_ffn_hidden_size", "expert_ffn_hidden_size"},
                    1, kMaxMoeSize))
    return *v;
  if (lenient(family)) return f.integer_or({"intermediate_size"}, 0, 1, kMaxMoeSize);
  return f.require({"intermediate_size"}, 1, kMaxMoeSize);
}

std::vector<bool> moe_layers(const ModelConfig& c, const ConfigFields& f, const Family* family) {
  const auto count = static_cast<size_t>(c.layers);
  if (c.experts == 0) return std::vector<bool>(count, false);
  if (const auto types = f.strings({"mlp_layer_types"}); !types.empty() && !lenient(family)) {
    if (types.size() != count)
      fail("{} has {} entries; expected num_hidden_layers = {}", f.label("mlp_layer_types"),
           types.size(), count);
    std::vector<bool> out(count);
    for (size_t i = 0; i < count; ++i) out[i] = types[i] != "dense";
    return out;
  }
  std::vector<bool> out(count, true);
  switch (family != nullptr ? family->layers : LayerRule::kAll) {
    case LayerRule::kAll:
      break;
    case LayerRule::kSparseStep: {
      const int64_t step = f.integer_or({"decoder_sparse_step"}, 1, 1, kMaxMoeSize);
      for (size_t i = 0; i < count; ++i) out[i] = (static_cast<int64_t>(i) + 1) % step == 0;
      for (const int64_t i : f.integers({"mlp_only_layers"}, 0, c.layers - 1))
        out[static_cast<size_t>(i)] = false;
      break;
    }
    case LayerRule::kFirstDense: {
      const int64_t first = f.integer_or({"first_k_dense_replace"}, 0, 0, kMaxMoeSize);
      const int64_t step = f.integer_or({"moe_layer_freq"}, 1, 1, kMaxMoeSize);
      for (size_t i = 0; i < count; ++i)
        out[i] = static_cast<int64_t>(i) >= first && static_cast<int64_t>(i) % step == 0;
      break;
    }
    case LayerRule::kInterleave: {
      if (f.has({"moe_layers"})) {
        out.assign(count, false);
        for (const int64_t i : f.integers({"moe_layers"}, 0, c.layers - 1))
          out[static_cast<size_t>(i)] = true;
      } else {
        const int64_t step = f.integer_or({"interleave_moe_layer_step"}, 1, 1, kMaxMoeSize);
        for (size_t i = 0; i < count; ++i) out[i] = (static_cast<int64_t>(i) + 1) % step == 0;
      }
      break;
    }
    case LayerRule::kInterval: {
      const int64_t step = f.integer_or({"moe_layer_interval"}, 1, 1, kMaxMoeSize);
      const int64_t first = f.integer_or({"moe_layer_start_index"}, 1, 0, kMaxMoeSize);
      int64_t last = f.integer_or({"moe_layer_end_index"}, -1, -1, kMaxMoeSize);
      if (last < 0) last = c.layers - 1;
      for (int64_t i = 0; i < c.layers; ++i)
        out[static_cast<size_t>(i)] = (i + 1) % step == 0 && i >= first && i <= last;
      break;
    }
    case LayerRule::kFlag:  // read together with the number of experts
      break;
  }
  return out;
}

void read_groups(RouterSpec& r, const ConfigFields& f) {
  const int64_t groups = f.integer_or({"n_group", "num_expert_group"}, 1, 1, kMaxExperts);
  const int64_t keep = f.integer_or({"topk_group"}, 1, 1, kMaxExperts);
  if (groups == 1) return;
  if (r.experts % static_cast<uint64_t>(groups) != 0)
    fail("{} is {}; expected a divisor of the {} experts", f.label("n_group"), groups, r.experts);
  if (keep > groups)
    fail("{} is {}; expected at most n_group = {}", f.label("topk_group"), keep, groups);
  r.groups = static_cast<size_t>(groups);
  r.topk_group = static_cast<size_t>(keep);
  if (r.experts / r.groups * r.topk_group < r.top_k)
    fail("{} is {}: {} of {} groups hold {} experts; expected at least num_experts_per_tok = {}",
         f.label("topk_group"), keep, keep, groups, r.experts / r.groups * r.topk_group, r.top_k);
}

Scoring scoring_of(const ConfigFields& f, std::string_view fallback) {
  const std::string name = f.string({"scoring_func", "score_func", "moe_router_activation_func"})
                               .value_or(std::string(fallback));
  if (name == "softmax") return Scoring::kSoftmax;
  if (name == "sigmoid") return Scoring::kSigmoid;
  if (name == "sqrtsoftplus") return Scoring::kSqrtSoftplus;
  fail("{} is '{}'; expected softmax, sigmoid or sqrtsoftplus", f.label("scoring_func"),
       printable(name, 60));
}

void deepseek_v3(RouterSpec& r, const ConfigFields& f) {
  r.scoring = scoring_of(f, "sigmoid");
  r.has_bias = true;
  read_groups(r, f);
  r.group_score_top2 = r.groups > 0;
  r.renormalize = f.boolean({"norm_topk_prob", "moe_renormalize"}).value_or(true);
  r.renormalize_epsilon = 1e-20f;
  r.scaling = as_float(f, {"routed_scaling_factor"}, 1.0f);
}

void deepseek_v2(RouterSpec& r, const ConfigFields& f) {
  const std::string method = f.string({"topk_method"}).value_or("greedy");
  if (method == "noaux_tc") return deepseek_v3(r, f);
  if (method == "group_limited_greedy") {
    read_groups(r, f);
  } else if (method != "greedy" && method != "gready") {
    fail("{} is '{}'; expected greedy, group_limited_greedy or noaux_tc", f.label("topk_method"),
         printable(method, 60));
  }
  r.scoring = scoring_of(f, "softmax");
  // The original code renormalizes instead of scaling.
  r.renormalize = r.top_k > 1 && f.boolean({"norm_topk_prob"}).value_or(false);
  r.renormalize_epsilon = r.renormalize ? 1e-20f : 0.0f;
  r.scaling = r.renormalize ? 1.0f : as_float(f, {"routed_scaling_factor"}, 1.0f);
}

float scale_of(const ConfigFields& f) {
  return as_float(f,
                  {"routed_scaling_factor", "route_scale", "router_scaling_factor",
                   "moe_routed_scaling_factor", "moe_router_scaling_factor"},
                  1.0f);
}

void biased(RouterSpec& r, const ConfigFields& f, Scoring scoring, float epsilon) {
  r.scoring = scoring;
  r.has_bias = f.boolean({"use_routing_bias", "use_expert_bias"}).value_or(true);
  r.renormalize = true;
  r.renormalize_epsilon = epsilon;
  r.scaling = scale_of(f);
}

// Returns whether weights are divided by their sum: yes by default, no if the field is null. Throws
// Error for other norms.
bool normalizes_by_sum(const ConfigFields& f) {
  constexpr const char* kName = "moe_normalize_expert_weights";
  const Json* order = f.find(kName);
  if (order == nullptr) return true;
  if (order->is_null()) return false;
  if (!order->is_number() || order->as_double() != 1) f.wrong(kName, *order, "1 or null");
  return true;
}

// Reads the router rules of newer families: scores with a correction bias, or other scores than a
// softmax.
void read_scored_router(RouterSpec& r, const ConfigFields& f, RoutingRule rule,
                        const Family* family) {
  switch (rule) {
    case RoutingRule::kSigmoidBias:
      biased(r, f, scoring_of(f, "sigmoid"), family->renormalize_epsilon);
      r.renormalize = f.boolean({"norm_topk_prob"}).value_or(true);
      r.logit_cap = std::max(0.0f, as_float(f, {"moe_router_logit_softcapping"}, 0.0f));
      break;
    case RoutingRule::kSigmoidShared:
      biased(r, f, Scoring::kSigmoid, 0.0f);
      if (!f.boolean({"shared_expert_sink"}).value_or(true))
        fail("{} is false; expected shared experts that the router weighs",
             f.label("shared_expert_sink"));
      break;
    case RoutingRule::kSigmoid:
      r.scoring = Scoring::kSigmoid;
      r.renormalize = f.boolean({"norm_topk_prob"}).value_or(true);
      break;
    case RoutingRule::kSoftmaxBias:
      biased(r, f, Scoring::kSoftmax, 0.0f);
      // The least sum by which weights are divided (ERNIE) must not exceed k / E, which the k best
      // of a softmax always reach.
      if (const float least = as_float(f, {"moe_norm_min"}, 0.0f);
          least > static_cast<float>(r.top_k) / static_cast<float>(r.experts))
        fail("{} is {}; expected at most {} of {} experts, which no sum lies below",
             f.label("moe_norm_min"), least, r.top_k, r.experts);
      break;
    case RoutingRule::kZeroExperts:
      biased(r, f, Scoring::kSoftmax, 0.0f);
      r.renormalize = false;
      r.zero_experts = static_cast<size_t>(f.integer_or({"zero_expert_num"}, 0, 0, kMaxExperts));
      break;
    case RoutingRule::kLogitBias:
      biased(r, f, Scoring::kSigmoid, 0.0f);
      r.select_on_logits = true;
      r.renormalize = f.boolean({"norm_topk_prob"}).value_or(false);
      break;
    case RoutingRule::kSelected:
      if (f.string({"expert_selection_fn"}).value_or("softmax") == "sigmoid") {
        r.scoring = Scoring::kSigmoid;
        r.renormalize = f.boolean({"norm_topk_prob"}).value_or(true);
      } else {
        r.softmax_after_topk = true;
      }
      break;
    case RoutingRule::kSoftmaxGroups:
      read_groups(r, f);
      r.group_score_top2 = r.groups > 0;
      r.renormalize = f.boolean({"norm_topk_prob"}).value_or(true);
      r.renormalize_epsilon = 1e-20f;
      r.scaling = scale_of(f);
      break;
    case RoutingRule::kSoftmaxNorm:
      r.renormalize = normalizes_by_sum(f);
      break;
    case RoutingRule::kSqrtSoftplus:
      biased(r, f, scoring_of(f, "sqrtsoftplus"), 1e-20f);
      break;
    default:
      break;
  }
}

void read_router(RouterSpec& r, const ConfigFields& f, RoutingRule rule, const Family* family) {
  switch (rule) {
    case RoutingRule::kNone:
      break;
    case RoutingRule::kSoftmax:
      r.renormalize = f.boolean({"norm_topk_prob"}).value_or(false);
      break;
    case RoutingRule::kSoftmaxDefaultOn:
      r.renormalize = f.boolean({"norm_topk_prob"}).value_or(true);
      break;
    case RoutingRule::kSoftmaxAlways:
      r.renormalize = true;
      break;
    case RoutingRule::kDeepseekV2:
      deepseek_v2(r, f);
      break;
    case RoutingRule::kDeepseekV3: {
      const std::string method = f.string({"topk_method"}).value_or("noaux_tc");
      if (method != "noaux_tc")
        deepseek_v2(r, f);
      else
        deepseek_v3(r, f);
      break;
    }
    case RoutingRule::kSoftmaxOverTopk:
      r.softmax_after_topk = true;
      break;
    case RoutingRule::kLlama4:
      r.scoring = Scoring::kSigmoid;
      r.select_on_logits = true;
      r.weight_on_input = true;
      break;
    case RoutingRule::kSparseMixer:
      r.method = RouterMethod::kSparseMixer;
      r.jitter_epsilon = as_float(f, {"router_jitter_noise"}, 0.01f);
      if (r.top_k != 2)
        fail("{} is {}; the sparse mixer selects 2", f.label("num_experts_per_tok"), r.top_k);
      break;
    case RoutingRule::kGemma4:
      r.select_on_logits = true;
      r.renormalize = true;
      r.per_expert_scale = true;
      break;
    default:
      read_scored_router(r, f, rule, family);
      break;
  }
}

void read_shared(ModelConfig& c, const ConfigFields& f, SharedRule rule) {
  switch (rule) {
    case SharedRule::kNone:
      break;
    case SharedRule::kGatedWidth:
      c.shared_intermediate = f.integer_or({"shared_expert_intermediate_size"}, 0, 0, kMaxMoeSize);
      c.shared_experts = c.shared_intermediate > 0 ? 1 : 0;
      c.moe.shared = c.shared_experts > 0 ? SharedKind::kGated : SharedKind::kNone;
      break;
    case SharedRule::kCount:
      c.shared_experts = f.integer_or(
          {"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"}, 0, 0, 1024);
      c.shared_intermediate = c.shared_experts * c.moe_intermediate;
      c.moe.shared = c.shared_experts > 0 ? SharedKind::kPlain : SharedKind::kNone;
      break;
    case SharedRule::kSameWidth:
      c.shared_experts = 1;
      c.shared_intermediate = c.moe_intermediate;
      c.moe.shared = SharedKind::kPlain;
      break;
  }
  c.moe.shared_intermediate = static_cast<size_t>(c.shared_intermediate);
}

// Reads a number or null for every layer; further numbers belong to prediction layers.
std::vector<float> layer_limits(const ModelConfig& c, const ConfigFields& f, const char* name) {
  const Json* list = c.text.find(name);
  if (list == nullptr || list->is_null()) return {};
  if (!list->is_array() || static_cast<int64_t>(list->items().size()) < c.layers)
    f.wrong(name, *list, "an array with a number for each layer");
  std::vector<float> out;
  for (int64_t i = 0; i < c.layers; ++i) {
    const Json& v = list->items()[static_cast<size_t>(i)];
    if (!v.is_null() && !(v.is_number() && v.as_double() >= 0 && v.as_double() < 1e30))
      f.wrong(fmt::format("{}[{}]", name, i), v, "0, null or a positive number");
    out.push_back(v.is_null() ? 0.0f : static_cast<float>(v.as_double()));
  }
  return out;
}

void read_activation(ModelConfig& c, const ConfigFields& f, const Family* family) {
  ActivationSpec& a = c.moe.activation;
  const ActivationRule rule = family != nullptr ? family->activation : ActivationRule::kConfig;
  const std::string named =
      f.string({"hidden_act", "hidden_activation", "mlp_hidden_act", "activation_function"})
          .value_or("silu");
  const auto only_silu = [&] {
    if (named != "silu" && named != "swish")
      fail("{} is '{}'; only silu can be clamped", f.label("hidden_act"), printable(named, 60));
  };
  if (rule == ActivationRule::kOai || rule == ActivationRule::kSiluLimit) {
    const bool oai = rule == ActivationRule::kOai;
    if (!oai) only_silu();
    a.kind = oai ? ActivationKind::kSwigluOai : ActivationKind::kSilu;
    if (oai || f.number({"swiglu_limit"})) a.limit = as_float(f, {"swiglu_limit"}, 7.0f);
    if (oai) a.alpha = as_float(f, {"swiglu_alpha"}, 1.702f);
    if (a.limit && !(*a.limit > 0))
      fail("{} is {}; expected a positive number", f.label("swiglu_limit"), *a.limit);
    return;
  }
  if (rule == ActivationRule::kRoutedSiluLimit) {
    const float limit = as_float(f, {"swiglu_limit"}, 10.0f);
    a.kind = activation_from_name(named);
    c.other_activation = a;
    a.kind = ActivationKind::kSilu;
    // The documentation of transformers says that 0 is no limit, but its code clamps to 0.
    if (!(limit > 0)) fail("{} is {}; expected a positive number", f.label("swiglu_limit"), limit);
    a.limit = limit;
    return;
  }
  if (rule == ActivationRule::kStep) {
    c.routed_limits = layer_limits(c, f, "swiglu_limits");
    c.other_limits = layer_limits(c, f, "swiglu_limits_shared");
    if (!c.routed_limits.empty() || !c.other_limits.empty()) only_silu();
  }
  std::string name = named;
  if (const Json* own = f.find("ffn_act_fn"); own != nullptr && own->is_object())  // DBRX
    name = ConfigFields(*own, f.path(), "ffn_config.ffn_act_fn.").string({"name"}).value_or("silu");
  if (!layout_of(family).gated) name += "_no_mul";
  try {
    a.kind = activation_from_name(name);
  } catch (const Error& e) {
    if (!lenient(family)) fail("{}: {}", f.label("hidden_act"), e.what());
    c.experts_reason = e.what();  // the experts are listed but cannot run
  }
}

}  // namespace

ActivationSpec limited_activation(const ActivationSpec& plain, const std::vector<float>& limits,
                                  int layer) {
  const auto i = static_cast<size_t>(layer);
  if (layer < 0 || i >= limits.size() || limits[i] == 0.0f) return plain;
  ActivationSpec limited;
  limited.kind = ActivationKind::kSwigluStep;
  limited.limit = limits[i];
  return limited;
}

ActivationSpec ModelConfig::dense_activation(int layer) const {
  return limited_activation(other_activation.value_or(moe.activation), other_limits, layer);
}

void parse_moe(ModelConfig& c, const ConfigFields& f, const Family* family,
               std::vector<std::string>& warnings) {
  const bool dense_family = family != nullptr && family->routing == RoutingRule::kNone;
  const ConfigFields::Names count_names = {"num_experts",        "num_local_experts",
                                           "n_routed_experts",   "moe_num_experts",
                                           "num_routed_experts", "n_experts"};
  const Json* count = c.text.find("num_experts");
  c.experts = dense_family ? 0
              : count != nullptr && count->is_array()
                  ? *same_in_all_layers(c, f, "num_experts", kMaxExperts, !lenient(family))
                  : f.integer_or(count_names, 0, 0, kMaxExperts);
  if (!f.boolean({"is_moe"}).value_or(true) || !f.boolean({"enable_moe_block"}).value_or(true))
    c.experts = 0;  // Doge and Gemma-4 count experts that they do not have
  if (!lenient(family) && !dense_family && !f.has(count_names) &&
      family->layers != LayerRule::kFlag)
    f.require(count_names, 1, kMaxExperts);
  if (family != nullptr && family->routing == RoutingRule::kLlama4) {
    c.intermediate =
        f.integer_or({"intermediate_size_mlp"},
                     f.integer_or({"intermediate_size"}, 0, 1, kMaxMoeSize), 1, kMaxMoeSize);
  } else {
    const Json* width = c.text.find("intermediate_size");
    if (width == nullptr || !width->is_array())
      c.intermediate =
          f.integer_or({"intermediate_size", "ffn_hidden_size", "n_inner"}, 0, 1, kMaxMoeSize);
  }
  if (f.boolean({"use_double_wide_mlp"}).value_or(false))
    c.wide_layers = f.integer_or({"num_kv_shared_layers"}, 0, 0, c.layers - 1);
  if (dense_family && c.intermediate == 0) f.require({"intermediate_size"}, 1, kMaxMoeSize);
  read_activation(c, f, family);
  if (c.experts == 0) {
    c.moe_layer = moe_layers(c, f, family);
    return;
  }
  const ConfigFields::Names topk_names = {"num_experts_per_tok",
                                          "num_experts_per_token",
                                          "experts_per_token",
                                          "top_k_experts",
                                          "moe_topk",
                                          "moe_k",
                                          "moe_top_k",
                                          "num_selected_experts"};
  if (const auto per_layer = c.text.find("moe_topk");
      per_layer != nullptr && per_layer->is_array()) {
    c.top_k = *same_in_all_layers(c, f, "moe_topk", c.experts, /*strict=*/true);
  } else {
    const int fixed = family != nullptr ? family->top_k : 0;
    const auto given = !lenient(family) ? f.require(topk_names, 1, c.experts)
                                        : f.integer(topk_names, 1, c.experts);
    c.top_k = given.value_or(fixed > 0 ? fixed : 1);
    if (!given && fixed == 0)
      warnings.push_back(
          fmt::format("{}: no field gives the experts per token; 1 is assumed", f.path()));
  }
  c.moe_intermediate = expert_width(c, f, family);
  c.moe.hidden = static_cast<size_t>(c.hidden);
  c.moe.intermediate = static_cast<size_t>(c.moe_intermediate);
  c.moe.experts = static_cast<size_t>(c.experts);
  c.moe.router.experts = static_cast<size_t>(c.experts);
  c.moe.router.top_k = static_cast<size_t>(c.top_k);
  c.moe.has_expert_bias = layout_of(family).expert_bias;
  read_router(c.moe.router, f, family != nullptr ? family->routing : RoutingRule::kNone, family);
  if (family != nullptr && !family->experts_reason.empty())
    c.experts_reason = family->experts_reason;
  read_shared(c, f, !lenient(family) ? family->shared : SharedRule::kCount);
  if (lenient(family) && f.has({"shared_expert_intermediate_size"}))
    read_shared(c, f, SharedRule::kGatedWidth);
  c.moe_layer = moe_layers(c, f, family);
}

}  // namespace moebius
