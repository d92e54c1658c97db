// SPDX-License-Identifier: Apache-2.0
// Describes Llama, Mistral and Qwen2, the dense decoder from which the mixtures grew; and mixtures
// with the same attention.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec plain_spec(const ModelConfig& config) { return common_spec(config); }

DecoderSpec llama_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  if (config.model_type == "qwen2") set_windows(config, s, {WindowLayers::kFromMax, false, 4096});
  if (config.model_type == "mistral") set_windows(config, s, {WindowLayers::kAll, true, 4096});
  set_temperature(config, s);
  return s;
}

}  // namespace moebius
