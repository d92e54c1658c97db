// SPDX-License-Identifier: Apache-2.0
// Describes Beam: windows with rotation; full attention without rotation whose queries grow with
// their position; gated results, norms on both sides of every branch, residuals weighed by depth.
#include <cmath>

#include "model/arch/arch.h"

namespace moebius {

DecoderSpec beam_spec(const ModelConfig& config) {
  using enum LayerRows;
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  s.norm = NormKind::kRmsFused;
  norm_heads(s);
  set_branch_norms(s, {.attention_out = "post_attention_layernorm",
                       .block_in = "pre_feedforward_layernorm",
                       .block_out = "post_feedforward_layernorm"});
  set_gates(s, {"self_attn.gate_proj"});
  const Json* cap = config.text.find("final_logit_softcapping");
  if (cap == nullptr || !cap->is_null()) s.ends.cap = real_of(f, {"final_logit_softcapping"}, 30);
  const size_t count = s.layers.size();
  set_windows(s,
              layers_called(config, "sliding_attention",
                            [&](size_t i) { return (i + 1) % 6 != 0 && i + 1 != count; }),
              size_of(f, {"sliding_window"}, 512));
  for (size_t i = 0; i < count; ++i) {
    KeyMixer& m = s.keys(i);
    m.attended.insert(m.attended.begin(), row_op::head_bias(kGate, "self_attn.gate_bias"));
    const auto join = [](LayerOps& ops, double n) {
      weigh_residual(ops, static_cast<float>(std::sqrt((n - 1) / n)),
                     static_cast<float>(1 / std::sqrt(n)));
    };
    join(s.layers[i].mixing.join, 2 * static_cast<double>(i) + 2);
    join(s.layers[i].block.join, 2 * static_cast<double>(i) + 3);
  }
  set_typed_ropes(config, s);
  // Layers of a type without an object in rope_parameters do not rotate.
  const Json* ropes = config.text.find("rope_parameters");
  each_attention(s, [&](KeyMixer& m) {
    const char* type = m.window != 0 ? "sliding_attention" : "full_attention";
    const Json* own = ropes != nullptr && ropes->is_object() ? ropes->find(type) : nullptr;
    if (own != nullptr ? own->is_object() : m.window != 0) return;
    stop_rotation(m);
    m.rows.push_back(row_op::power(kQuery, {0.1f, 2048, 1}));
  });
  return s;
}

}  // namespace moebius
