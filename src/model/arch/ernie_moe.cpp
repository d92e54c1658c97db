// SPDX-License-Identifier: Apache-2.0
// ERNIE-4.5: plain attention, rotation of neighbouring pairs.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec ernie_moe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  s.rope.interleaved = true;
  return s;
}

}  // namespace moebius
