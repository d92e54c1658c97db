// SPDX-License-Identifier: Apache-2.0
// LFM2-MoE: gated short convolutions between layers of attention with norms of q and k per head.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec lfm2_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.names = {"self_attn", "out_proj", "conv"};
  s.attention_in = "operator_norm", s.block_in = "ffn_norm";
  s.norm_epsilon = static_cast<float>(f.number({"norm_eps"}).value_or(1e-5));
  s.qk_norm = QkNorm::kHead;
  s.q_norm = "self_attn.q_layernorm", s.k_norm = "self_attn.k_layernorm";
  s.recurrent = GatedConvolutionSpec{static_cast<size_t>(config.hidden),
                                     static_cast<size_t>(f.integer_or({"conv_L_cache"}, 3, 1, 64))};
  set_recurrent(config, s, "conv");
  return s;
}

}  // namespace moebius
