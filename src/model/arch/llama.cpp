// SPDX-License-Identifier: Apache-2.0
// Llama, Mistral and Qwen2: the dense decoder that the mixtures grew from.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec llama_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  if (config.model_type != "qwen2" ||
      fields_of(config).boolean({"use_sliding_window"}).value_or(false))
    set_windows(config, s);
  return s;
}

}  // namespace moebius
