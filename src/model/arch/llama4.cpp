// SPDX-License-Identifier: Apache-2.0
// Llama-4, text: chunked attention with rotation in most layers, full attention without rotation
// (and a growing temperature) in the others.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec llama4_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.rope.interleaved = true;
  if (f.boolean({"use_qk_norm"}).value_or(true)) s.qk_norm = QkNorm::kAfterPlain;
  const std::vector<int64_t> rotary = f.integers({"no_rope_layers"}, 0, 1);
  const int64_t chunk = f.integer_or({"attention_chunk_size"}, 8192, 1, int64_t{1} << 40);
  const bool tuned = f.boolean({"attn_temperature_tuning"}).value_or(true);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.rotary = i < rotary.size() ? rotary[i] != 0 : (i + 1) % 4 != 0;
    if (layer.rotary) {
      layer.chunk = static_cast<size_t>(chunk);
    } else if (tuned) {
      layer.temperature_scale = static_cast<float>(f.number({"attn_scale"}).value_or(0.1));
      layer.temperature_floor = static_cast<float>(f.number({"floor_scale"}).value_or(8192));
    }
  }
  return s;
}

}  // namespace moebius
