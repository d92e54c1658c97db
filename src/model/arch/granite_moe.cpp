// SPDX-License-Identifier: Apache-2.0
// Granite-MoE: four multipliers; the attention scale is one of them.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec granite_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.embedding_multiplier = static_cast<float>(f.number({"embedding_multiplier"}).value_or(1));
  s.residual_multiplier = static_cast<float>(f.number({"residual_multiplier"}).value_or(1));
  s.logits_divisor = static_cast<float>(f.number({"logits_scaling"}).value_or(1));
  s.attention_scale = static_cast<float>(f.number({"attention_multiplier"}).value_or(0));
  return s;
}

}  // namespace moebius
