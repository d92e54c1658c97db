// SPDX-License-Identifier: Apache-2.0
// Describes Kimi-Linear: the delta rule with a decay per key feature, and layers of DeepSeek-V3's
// attention without rotation.
#include "model/arch/arch.h"

namespace moebius {

namespace {

// Returns the fields of linear_attn_config, or none.
ConfigFields kimi_fields(const ModelConfig& config) {
  static const Json kNothing = Json::object();
  const Json* nested = config.text.find("linear_attn_config");
  const bool apart = nested != nullptr && nested->is_object();
  return {apart ? *nested : kNothing, "config.json", "linear_attn_config."};
}

}  // namespace

DeltaSpec kimi_delta(const ModelConfig& config, int64_t heads) {
  const ConfigFields top = fields_of(config), own = kimi_fields(config);
  const auto size = [&](const char* name, const char* inside, int64_t fallback, int64_t most) {
    return static_cast<size_t>(
        own.integer_or({inside}, top.integer_or({name}, fallback, 1, most), 1, most));
  };
  require_silu(config);
  DeltaSpec d;
  d.key_heads = d.value_heads = size("linear_num_heads", "num_heads", heads, 4096);
  d.key_dim = d.value_dim = size("linear_head_dim", "head_dim", 128, 512);
  d.width = size("linear_conv_kernel_dim", "short_conv_kernel_size", 4, 64);
  d.decay_per_key = true;
  d.gate = RowFunction::kSigmoid;
  return d;
}

DecoderSpec kimi_linear_spec(const ModelConfig& config) {
  DecoderSpec s = deepseek_spec(config);
  s.names.recurrent = "self_attn";
  s.recurrent = kimi_delta(config, 32);
  const std::vector<int64_t> full =
      kimi_fields(config).integers({"full_attn_layers"}, 1, static_cast<int64_t>(s.layers.size()));
  for (size_t i = 0; i < s.layers.size(); ++i) {
    stop_rotation(s.layers[i]);
    s.layers[i].recurrent = !full.empty() || i == 0 || i % 4 != 0;
  }
  // Numbers start at 1.
  for (const int64_t i : full) s.layers[static_cast<size_t>(i - 1)].recurrent = false;
  if (!config.layer_types.empty()) set_recurrent(config, s, "linear_attention");
  return s;
}

}  // namespace moebius
