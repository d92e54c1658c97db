// SPDX-License-Identifier: Apache-2.0
// Describes GPT-OSS: attention sinks, sliding window in every other layer, biases everywhere, norms
// that multiply before rounding.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec gpt_oss_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.norm = NormKind::kRmsFused;
  for (LayerSpec& layer : s.layers) layer.sinks = true;
  if (!f.strings({"layer_types"}).empty()) {
    set_windows(config, s);
  } else {  // older configs do not state that windows alternate
    const int64_t window = f.integer_or({"sliding_window"}, 128, 1, int64_t{1} << 40);
    for (size_t i = 0; i < s.layers.size(); i += 2)
      s.layers[i].window = static_cast<size_t>(window);
  }
  return s;
}

}  // namespace moebius
