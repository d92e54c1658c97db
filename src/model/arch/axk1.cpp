// SPDX-License-Identifier: Apache-2.0
// Describes A.X-K1: DeepSeek-V3 with a norm of what experts and shared experts give together.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec axk1_spec(const ModelConfig& config) {
  using enum LayerRows;
  DecoderSpec s = deepseek_spec(config);
  s.whole_blocks = true;
  for (size_t i = 0; i < s.layers.size(); ++i)
    if (config.moe_layer[i])
      s.layers[i].block.join = {row_op::norm(kBranch, kBranch, "post_mlp_layernorm"),
                                row_op::add(kHidden, kBranch)};
  return s;
}

}  // namespace moebius
