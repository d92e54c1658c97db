// SPDX-License-Identifier: Apache-2.0
// Describes Flint: Qwen3-MoE with sinks; windows with rotation, full attention without rotation.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec flint_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  s.norm = NormKind::kRmsFused;
  norm_heads(s);
  const size_t count = s.layers.size();
  std::vector<bool> layers = layers_called(
      config, "full_attention", [&](size_t i) { return i < 2 || i % 4 == 1 || i + 1 == count; });
  layers.flip();
  set_windows(s, layers, size_of(fields_of(config), {"sliding_window"}, 513));
  rotate_in_windows(s);
  each_attention(s, [](KeyMixer& m) { m.sinks = "self_attn.softmax_offset"; });
  return s;
}

}  // namespace moebius
