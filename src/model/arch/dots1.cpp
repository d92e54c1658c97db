// SPDX-License-Identifier: Apache-2.0
// Describes dots.llm1: q and k normalized per head, windows from max_window_layers on.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec dots1_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  norm_heads(s);
  set_windows(config, s, {WindowLayers::kFromMax, true, 4096, 62});
  return s;
}

}  // namespace moebius
