// SPDX-License-Identifier: Apache-2.0
// Describes the text parts of Step-3.5 and Step-3.7: windows with heads and a rotation of their
// own, results gated per head, norms with 1 + w.
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"
#include "model/arch/layer_fields.h"

namespace moebius {
namespace {

// Returns a layer's rotation from published configs, which are older than transformers' class:
// bases and shares of the rotation are lists with an entry per layer, equal within a type; scaling
// applies to full attention alone.
RopeSpec listed_rope(const ModelConfig& config, const ConfigFields& f, size_t layer, bool slides) {
  const auto number = [&](const char* name, double fallback) {
    const Json* v = config.text.find(name);
    if (v == nullptr || v->is_null()) return fallback;
    if (v->is_array()) {
      if (layer >= v->items().size() || !v->items()[layer].is_number())
        fail("{}: has no number for layer {}", f.label(name), layer);
      return v->items()[layer].as_double();
    }
    return f.number({name}).value_or(fallback);
  };
  const double share = number("partial_rotary_factors", 1), base = number("rope_theta", 10000);
  if (!(share > 0 && share <= 1) || !(base > 0 && std::isfinite(base)))
    fail("{}: layer {} has base {} and {} of it rotated; expected positive numbers, at most 1",
         f.label("rope_theta"), layer, base, share);
  const auto dims = static_cast<size_t>(share * static_cast<double>(config.head_dim));
  if (!slides) return rope_spec(config, dims, "", base);
  RopeSpec r;
  r.dims = dims;
  r.base = base;
  return r;
}

// Returns a layer's number of heads; windows have their own, unless config.json has fields for
// single layers.
size_t heads_of(const ModelConfig& config, const ConfigFields& f, size_t layer, bool slides) {
  if (has_layer_fields(config) || !slides)
    return static_cast<size_t>(
        layer_fields(config, layer).integer_or({"num_attention_heads"}, config.heads, 1, 1 << 20));
  const Json* other = config.text.find("attention_other_setting");
  const int64_t stated = other != nullptr && other->is_object()
                             ? ConfigFields(*other, "config.json", "attention_other_setting.")
                                   .integer_or({"num_attention_heads"}, config.heads, 1, 1 << 20)
                             : config.heads;
  return static_cast<size_t>(f.integer_or({"num_sliding_attention_heads"}, stated, 1, 1 << 20));
}

void refuse_other_attention(const ModelConfig& config, const ConfigFields& f) {
  if (f.boolean({"use_bidirectional_attention"}).value_or(false))
    fail("{}: is true; only causal attention can be run", f.label("use_bidirectional_attention"));
  const Json* gating = config.text.find("gating");
  if (gating != nullptr && !(gating->is_bool() && gating->as_bool()) &&
      !(gating->is_string() && gating->as_string() == "per-head"))
    f.wrong("gating", *gating, "true or \"per-head\"");
}

}  // namespace

DecoderSpec step3p7_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  refuse_other_attention(config, f);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim), 10000);
  s.norm = NormKind::kRmsOnePlus;
  s.norm_epsilon = real_of(f, {"rms_norm_eps"}, 1e-5);
  norm_heads(s);
  set_gates(s, {"self_attn.g_proj", true});
  const double scalar = f.number({"query_pre_attn_scalar"}).value_or(0);
  const std::vector<std::string> types = f.strings({"layer_types"});
  const auto window = static_cast<size_t>(f.integer_or({"sliding_window"}, 0, 1, 1 << 30));
  const bool typed = f.has({"rope_parameters"});
  s.other_ropes = {s.rope};
  for (size_t i = 0; i < s.layers.size(); ++i) {
    KeyMixer& m = s.keys(i);
    if (scalar > 0) m.scale = static_cast<float>(1 / std::sqrt(scalar));
    const bool slides = i < types.size() && types[i] == "sliding_attention";
    m.sizes.heads = heads_of(config, f, i, slides);
    if (m.sizes.heads % m.sizes.kv_heads != 0)
      fail("{}: layer {} has {} heads; expected a multiple of {} key-value heads", f.path(), i,
           m.sizes.heads, m.sizes.kv_heads);
    if (slides) {
      if (window == 0) fail("{}: is missing; layer {} slides", f.label("sliding_window"), i);
      m.window = window;
      set_rope(m, 1);
    }
    if (!typed) (slides ? s.other_ropes[0] : s.rope) = listed_rope(config, f, i, slides);
  }
  if (typed) set_typed_ropes(config, s);
  return s;
}

}  // namespace moebius
