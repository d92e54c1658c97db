// SPDX-License-Identifier: Apache-2.0
// Kimi-Linear: the delta rule with a decay per key feature, and layers of DeepSeek-V3's attention
// without rotation.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec kimi_linear_spec(const ModelConfig& config) {
  static const Json kNothing = Json::object();
  const Json* nested = config.text.find("linear_attn_config");
  const bool apart = nested != nullptr && nested->is_object();
  const ConfigFields top = fields_of(config),
                     own(apart ? *nested : kNothing, "config.json", "linear_attn_config.");
  DecoderSpec s = deepseek_spec(config);
  s.names.recurrent = "self_attn";
  const auto size = [&](const char* name, const char* inside, int64_t fallback, int64_t most) {
    return static_cast<size_t>(
        own.integer_or({inside}, top.integer_or({name}, fallback, 1, most), 1, most));
  };
  DeltaSpec d;
  d.key_heads = d.value_heads = size("linear_num_heads", "num_heads", 32, 4096);
  d.key_dim = d.value_dim = size("linear_head_dim", "head_dim", 128, 512);
  d.width = size("linear_conv_kernel_dim", "short_conv_kernel_size", 4, 64);
  d.decay_per_key = true;
  d.gate = RowFunction::kSigmoid;
  s.recurrent = d;
  const std::vector<int64_t> full =
      own.integers({"full_attn_layers"}, 1, static_cast<int64_t>(s.layers.size()));
  for (size_t i = 0; i < s.layers.size(); ++i) {
    stop_rotation(s.layers[i]);
    s.layers[i].recurrent = !full.empty() || i == 0 || i % 4 != 0;
  }
  for (const int64_t i : full) s.layers[static_cast<size_t>(i - 1)].recurrent = false;  // from 1 on
  if (!config.layer_types.empty()) set_recurrent(config, s, "linear_attention");
  return s;
}

}  // namespace moebius
