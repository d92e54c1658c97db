// SPDX-License-Identifier: Apache-2.0
// Describes MiniMax-Text-01: lightning attention between layers of attention; what a layer adds to
// is its input behind the norm, and both have factors.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec minimax_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.norm_epsilon = real_of(f, {"rms_norm_eps"}, 1e-5);
  require_silu(config, "in lightning attention");
  const HeadSizes n = s.keys(0).sizes;
  set_recurrent(config, s, {LightningSpec{n.heads, n.head_dim}, "self_attn"}, "linear_attention",
                [](size_t i) { return i % 2 == 1; });
  set_windows(config, s, {.layers = WindowLayers::kAll});
  for (LayerSpec& layer : s.layers) {
    for (BranchSpec* branch : {&layer.mixing, &layer.block})
      branch->enter.push_back(row_op::copy(LayerRows::kHidden, LayerRows::kInput));
    weigh_residual(layer.block.join, real_of(f, {"mlp_alpha_factor"}, 1),
                   real_of(f, {"mlp_beta_factor"}, 1));
    const std::string kind = layer.state() != nullptr ? "linear" : "full";
    weigh_residual(layer.mixing.join, real_of(f, {kind + "_attn_alpha_factor"}, 1),
                   real_of(f, {kind + "_attn_beta_factor"}, 1));
  }
  return s;
}

}  // namespace moebius
