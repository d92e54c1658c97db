// SPDX-License-Identifier: Apache-2.0
// Describes Qwen3 and Qwen3-MoE, and the text parts of their wrappers: q and k normalized per head
// before the rotation; no bias, no shared expert.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec qwen3_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  norm_heads(s);
  if (config.family == "qwen3") set_windows(config, s, {WindowLayers::kFromMax, false, 4096});
  if (config.family == "qwen3_moe") set_windows(config, s, {WindowLayers::kAll, false, 4096});
  return s;
}

}  // namespace moebius
