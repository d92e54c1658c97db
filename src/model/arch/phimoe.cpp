// SPDX-License-Identifier: Apache-2.0
// Describes Phi-3.5-MoE: LayerNorm with bias, biases in attention and lm_head, longrope.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec phimoe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  s.norm = NormKind::kLayer;
  set_windows(config, s);
  return s;
}

}  // namespace moebius
