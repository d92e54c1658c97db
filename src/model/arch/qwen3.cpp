// SPDX-License-Identifier: Apache-2.0
// Qwen3 and Qwen3-MoE: q and k normalized per head before the rotation; no bias, no shared expert.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec qwen3_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  s.qk_norm = QkNorm::kHead;
  set_windows(config, s);
  return s;
}

}  // namespace moebius
