// SPDX-License-Identifier: Apache-2.0
// Qwen2-MoE: biases on q, k and v (read where the file has them); the gated shared expert belongs
// to the MoE block.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec qwen2_moe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  if (fields_of(config).boolean({"use_sliding_window"}).value_or(false)) set_windows(config, s);
  return s;
}

}  // namespace moebius
