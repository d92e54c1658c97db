// SPDX-License-Identifier: Apache-2.0
// Describes Mixtral: plain attention, optional sliding window.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec mixtral_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  set_windows(config, s);
  return s;
}

}  // namespace moebius
