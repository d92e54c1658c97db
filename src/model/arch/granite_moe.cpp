// SPDX-License-Identifier: Apache-2.0
// Describes Granite-MoE: four multipliers; the attention scale is one of them. Granite 4 has
// Mamba-2 layers between those of attention, which then may not rotate.
#include <cmath>
#include <limits>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

bool is_finite(const Json& v) { return v.is_number() && std::isfinite(v.as_double()); }

// Returns whether a value is infinite: as Python's json writes it, as transformers 5 does, or null,
// which replaces it in strict JSON.
bool is_infinite(const Json& v) {
  const Json* tag = v.find("__float__");
  return v.is_null() || (tag != nullptr && tag->is_string() && tag->as_string() == "Infinity") ||
         (v.is_number() && v.as_double() == std::numeric_limits<double>::infinity());
}

Mamba2Spec granite_mamba(const ModelConfig& config, const ConfigFields& f) {
  Mamba2Spec m;
  m.heads = size_of(f, {"mamba_n_heads"}, 128, 65536);
  const Json* head = config.text.find("mamba_d_head");
  if (head == nullptr || (head->is_string() && head->as_string() == "auto"))
    m.head_dim = size_of(f, {"mamba_expand"}, 2, 64) * static_cast<size_t>(config.hidden) / m.heads;
  else
    m.head_dim = size_of(f, {"mamba_d_head"}, 64, Mamba2::kMostHead);
  m.groups = size_of(f, {"mamba_n_groups"}, 1, 65536);
  m.state = size_of(f, {"mamba_d_state"}, 256, 65536);
  m.width = size_of(f, {"mamba_d_conv"}, 4, 64);
  if (const Json* limit = config.text.find("time_step_limit");
      limit != nullptr && !limit->is_null()) {
    if (!limit->is_array() || limit->items().size() != 2)
      f.wrong("time_step_limit", *limit, "the least and the most");
    const Json &least = limit->items()[0], &most = limit->items()[1];
    if (!is_finite(least)) f.wrong("time_step_limit[0]", least, "a finite number");
    if (!is_finite(most) && !is_infinite(most))
      f.wrong("time_step_limit[1]", most, "a number, or Infinity for no limit");
    m.least_step = static_cast<float>(least.as_double());
    m.most_step = is_finite(most) ? static_cast<float>(most.as_double()) : 0;
  }
  return m;
}

}  // namespace

DecoderSpec granite_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.ends.multiplier = real_of(f, {"embedding_multiplier"}, 1);
  s.ends.divisor = real_of(f, {"logits_scaling"}, 1);
  const float add = real_of(f, {"residual_multiplier"}, 1);
  for (LayerSpec& layer : s.layers) {
    for (BranchSpec* branch : {&layer.mixing, &layer.block}) weigh_residual(branch->join, 1, add);
    layer.keys()->scale = real_of(f, {"attention_multiplier"}, 1);
  }
  return s;
}

DecoderSpec granite_hybrid_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = granite_moe_spec(config);
  require_silu(config);
  if (f.string({"position_embedding_type"}).value_or("nope") != "rope") stop_rotation(s);
  set_recurrent(config, s, {granite_mamba(config, f), "mamba"}, "linear_attention mamba",
                [](size_t) { return true; });
  return s;
}

// Describes the variant with sinks everywhere, windows in most layers, and a base of the rotation
// per layer (0: no rotation).
DecoderSpec granite_swa_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = granite_moe_spec(config);
  set_windows(s, layers_called(config, "sliding_attention", [](size_t i) { return i % 4 != 0; }),
              size_of(f, {"sliding_window"}, 128));
  each_attention(s, [](KeyMixer& m) { m.sinks = "self_attn.sinks"; });
  const Json* bases = config.text.find("layer_rope_theta");
  if (bases == nullptr || !bases->is_array()) return s;
  for (size_t i = 0; i < s.layers.size(); ++i) {
    if (i >= bases->items().size() || !is_finite(bases->items()[i]))
      fail("{}: has no number for layer {}", f.label("layer_rope_theta"), i);
    const double base = bases->items()[i].as_double();
    if (!(base > 0)) stop_rotation(s.keys(i));
    if (!(base > 0) || base == s.rope.base) continue;
    size_t at = 0;
    while (at < s.other_ropes.size() && s.other_ropes[at].base != base) ++at;
    if (at == s.other_ropes.size()) {
      s.other_ropes.push_back(s.rope);
      s.other_ropes.back().base = base;
    }
    set_rope(s.keys(i), at + 1);
  }
  return s;
}

}  // namespace moebius
