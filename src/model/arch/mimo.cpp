// SPDX-License-Identifier: Apache-2.0
// MiMo-V2-Flash: windows with sinks and twice the key-value heads in most layers; values narrower
// than keys, and scaled.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec mimo_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  if (config.v_head_dim > 0) s.value_dim = static_cast<size_t>(config.v_head_dim);
  s.sinks = "self_attn.attention_sink_bias";
  s.value_scale = static_cast<float>(f.number({"attention_value_scale"}).value_or(1));
  const std::vector<std::string> types = f.strings({"layer_types"});
  const auto window = static_cast<size_t>(f.integer_or({"sliding_window"}, 129, 1, 1 << 30));
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    const bool slides =
        i < types.size() ? types[i] == "sliding_attention" : i != 0 && (i + 1) % 6 != 0;
    if (!slides) continue;
    layer.window = window;
    layer.sinks = true;
    layer.sizes.kv_heads = 2 * s.kv_heads;
  }
  set_typed_ropes(config, s, 0.334);
  return s;
}

}  // namespace moebius
