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
  set_gates(s, {"self_attn.gate_proj"});
  if (f.boolean({"mup_enabled"}).value_or(false))
    s.ends.multiplier = std::sqrt(static_cast<float>(config.hidden));
  const size_t every = size_of(f, {"global_attn_every_n_layers"}, 4, 1 << 20);
  set_windows(
      s, layers_called(config, "sliding_attention", [&](size_t i) { return (i + 1) % every != 0; }),
      size_of(f, {"sliding_window"}, 1024));
  rotate_in_windows(s);
  return s;
}

}  // namespace moebius
