// SPDX-License-Identifier: Apache-2.0
// Granite-MoE: four multipliers; the attention scale is one of them.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec granite_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.embedding_multiplier = static_cast<float>(f.number({"embedding_multiplier"}).value_or(1));
  s.residual_multiplier = static_cast<float>(f.number({"residual_multiplier"}).value_or(1));
  s.logits_divisor = static_cast<float>(f.number({"logits_scaling"}).value_or(1));
  s.attention_scale = static_cast<float>(f.number({"attention_multiplier"}).value_or(0));
  return s;
}

// Sinks everywhere, windows in most layers, a base of the rotation per layer (0: no rotation).
DecoderSpec granite_swa_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = granite_moe_spec(config);
  const std::vector<std::string> types = f.strings({"layer_types"});
  const auto window = static_cast<size_t>(f.integer_or({"sliding_window"}, 128, 1, 1 << 30));
  const Json* bases = config.text.find("layer_rope_theta");
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.sinks = true;
    if (i < types.size() ? types[i] == "sliding_attention" : i % 4 != 0) layer.window = window;
    if (bases == nullptr || !bases->is_array()) continue;
    if (i >= bases->items().size() || !bases->items()[i].is_number())
      fail("{}: has no number for layer {}", f.label("layer_rope_theta"), i);
    const double base = bases->items()[i].as_double();
    layer.rotary = base > 0;
    RopeSpec rope = s.rope;
    rope.base = base;
    if (!layer.rotary || base == s.rope.base) continue;
    for (layer.rope = 1; layer.rope <= s.other_ropes.size(); ++layer.rope)
      if (s.other_ropes[layer.rope - 1].base == base) break;
    if (layer.rope > s.other_ropes.size()) s.other_ropes.push_back(rope);
  }
  return s;
}

}  // namespace moebius
