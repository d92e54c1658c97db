// SPDX-License-Identifier: Apache-2.0
// Describes LFM2-MoE: gated short convolutions between layers of attention with norms of q and k
// per head.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec lfm2_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.names = {"self_attn", "out_proj", "conv"};
  set_branch_norms(s, {.attention_in = "operator_norm", .block_in = "ffn_norm"});
  s.norm_epsilon = static_cast<float>(f.number({"norm_eps"}).value_or(1e-5));
  norm_heads(s, "self_attn.q_layernorm", "self_attn.k_layernorm");
  s.recurrent = GatedConvolutionSpec{static_cast<size_t>(config.hidden),
                                     static_cast<size_t>(f.integer_or({"conv_L_cache"}, 3, 1, 64))};
  set_recurrent(config, s, "conv");
  return s;
}

}  // namespace moebius
