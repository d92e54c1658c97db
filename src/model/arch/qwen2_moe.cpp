// SPDX-License-Identifier: Apache-2.0
// Describes Qwen2-MoE: biases on q, k and v (read where the file has them); the gated shared expert
// belongs to the MoE block.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec qwen2_moe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  set_windows(config, s, {WindowLayers::kOddBelowMax, false, 4096});
  return s;
}

}  // namespace moebius
