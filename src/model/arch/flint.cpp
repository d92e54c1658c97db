// SPDX-License-Identifier: Apache-2.0
// Describes Flint: Qwen3-MoE with sinks; windows with rotation, full attention without rotation.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec flint_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  s.norm = NormKind::kRmsFused;
  s.sinks = "self_attn.softmax_offset";
  norm_heads(s);
  const std::vector<std::string> types = f.strings({"layer_types"});
  const auto window = static_cast<size_t>(f.integer_or({"sliding_window"}, 513, 1, 1 << 30));
  for (size_t i = 0; i < s.layers.size(); ++i) {
    s.layers[i].sinks = true;
    const bool full = i < types.size() ? types[i] == "full_attention"
                                       : i < 2 || i % 4 == 1 || i + 1 == s.layers.size();
    if (full)
      stop_rotation(s.layers[i]);
    else
      s.layers[i].window = window;
  }
  return s;
}

}  // namespace moebius
