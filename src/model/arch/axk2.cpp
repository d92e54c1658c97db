// SPDX-License-Identifier: Apache-2.0
// Describes A.X-K2: DeepSeek-V3.2's attention whose queries, with gates of what it gives, are made
// of their latent with and without its norm; rows that a branch reads gate themselves.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec axk2_spec(const ModelConfig& config) {
  using enum LayerRows;
  DecoderSpec s = sparse_deepseek_spec(config);
  each_attention(s, [](KeyMixer& m) { m.latent->raw_query = true; });
  set_gates(s, {});
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.mixing.enter = {row_op::norm(kInput, kHidden, "input_layernorm.norm")};
    layer.mixing.row_gate = "input_layernorm";
    if (!config.moe_layer[i]) continue;
    layer.block.enter = {row_op::norm(kInput, kHidden, "post_attention_layernorm.norm")};
    layer.block.row_gate = "post_attention_layernorm";
  }
  return s;
}

}  // namespace moebius
