// SPDX-License-Identifier: Apache-2.0
// HunYuan-MoE: q and k normalized per head behind the rotation.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec hunyuan_moe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  s.qk_norm = QkNorm::kHeadAfter;
  s.q_norm = "self_attn.query_layernorm", s.k_norm = "self_attn.key_layernorm";
  return s;
}

}  // namespace moebius
