// SPDX-License-Identifier: Apache-2.0
// Describes HunYuan-MoE: q and k normalized per head behind the rotation.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec hunyuan_moe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  using enum LayerRows;
  each_attention(s, [](KeyMixer& m) {
    m.rows = {row_op::rotate(kQuery), row_op::rotate(kKey),
              row_op::head_norm(kQuery, "self_attn.query_layernorm"),
              row_op::head_norm(kKey, "self_attn.key_layernorm")};
  });
  return s;
}

}  // namespace moebius
