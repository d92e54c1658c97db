// SPDX-License-Identifier: Apache-2.0
// Describes MiniMax-Text-01: lightning attention between layers of attention; what a layer adds to
// is its input behind the norm, and both have factors.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec minimax_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.norm_epsilon = static_cast<float>(f.number({"rms_norm_eps"}).value_or(1e-5));
  if (const std::string act = f.string({"hidden_act"}).value_or("silu");
      act != "silu" && act != "swish")
    fail("{}: is '{}'; only silu can be run in lightning attention", f.label("hidden_act"),
         printable(act, 60));
  s.names.recurrent = "self_attn";
  s.recurrent = LightningSpec{s.heads, s.head_dim};
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].recurrent = i % 2 == 1;
  if (!config.layer_types.empty()) set_recurrent(config, s, "linear_attention");
  set_windows(config, s, {.layers = WindowLayers::kAll});
  const auto weigh = [&](LayerOps& join, const char* keep, const char* add) {
    weigh_residual(join, static_cast<float>(f.number({keep}).value_or(1)),
                   static_cast<float>(f.number({add}).value_or(1)));
  };
  for (LayerSpec& layer : s.layers) {
    for (LayerOps* enter : {&layer.enter_attention, &layer.enter_block})
      enter->push_back(row_op::copy(LayerRows::kHidden, LayerRows::kInput));
    weigh(layer.join_block, "mlp_alpha_factor", "mlp_beta_factor");
    if (layer.recurrent)
      weigh(layer.join_attention, "linear_attn_alpha_factor", "linear_attn_beta_factor");
    else
      weigh(layer.join_attention, "full_attn_alpha_factor", "full_attn_beta_factor");
  }
  return s;
}

}  // namespace moebius
