// SPDX-License-Identifier: Apache-2.0
// Describes LFM2-MoE: gated short convolutions between layers of attention with norms of q and k
// per head.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec lfm2_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  set_branch_norms(s, {.attention_in = "operator_norm", .block_in = "ffn_norm"});
  s.norm_epsilon = real_of(f, {"norm_eps"}, 1e-5);
  norm_heads(s, "self_attn.q_layernorm", "self_attn.k_layernorm");
  each_attention(s, [](KeyMixer& m) { m.names.output = "out_proj"; });
  const GatedConvolutionSpec net{static_cast<size_t>(config.hidden),
                                 size_of(f, {"conv_L_cache"}, 3, 64)};
  set_recurrent(config, s, {net, "conv"}, "conv", nullptr);
  return s;
}

}  // namespace moebius
