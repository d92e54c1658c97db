// SPDX-License-Identifier: Apache-2.0
// Describes AFMoE: windows with rotation in most layers, full attention without rotation in the
// others; results gated by a projection of their own, norms on both sides of every branch.
#include <cmath>

#include "model/arch/arch.h"

namespace moebius {

DecoderSpec afmoe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  norm_heads(s);
  set_branch_norms(s, {.attention_out = "post_attention_layernorm",
                       .block_in = "pre_mlp_layernorm",
                       .block_out = "post_mlp_layernorm"});
  s.gates = GateSpec{"self_attn.gate_proj"};
  if (f.boolean({"mup_enabled"}).value_or(false))
    s.embedding_multiplier = std::sqrt(static_cast<float>(config.hidden));
  const std::vector<std::string> types = f.strings({"layer_types"});
  const auto window = static_cast<size_t>(f.integer_or({"sliding_window"}, 1024, 1, 1 << 30));
  const auto every =
      static_cast<size_t>(f.integer_or({"global_attn_every_n_layers"}, 4, 1, 1 << 20));
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.attended = {row_op::gate(RowOpKind::kGateSigmoid)};
    if (i < types.size() ? types[i] == "sliding_attention" : (i + 1) % every != 0)
      layer.window = window;
    else
      stop_rotation(layer);
  }
  return s;
}

}  // namespace moebius
