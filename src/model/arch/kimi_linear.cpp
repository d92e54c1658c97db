// SPDX-License-Identifier: Apache-2.0
// Describes Kimi-Linear: the delta rule with a decay per key feature, and layers of DeepSeek-V3's
// attention without rotation.
#include <algorithm>

#include "model/arch/arch.h"

namespace moebius {

DeltaSpec kimi_delta(const ModelConfig& config, int64_t heads) {
  const ConfigFields top = fields_of(config), own = nested_fields(config, "linear_attn_config");
  const auto size = [&](const char* name, const char* inside, int64_t fallback, int64_t most) {
    return size_of(own, {inside}, top.integer_or({name}, fallback, 1, most), most);
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
  stop_rotation(s);
  const DeltaSpec delta = kimi_delta(config, 32);
  // Numbers start at 1.
  const std::vector<int64_t> full =
      nested_fields(config, "linear_attn_config")
          .integers({"full_attn_layers"}, 1, static_cast<int64_t>(s.layers.size()));
  set_recurrent(config, s, {delta, "self_attn"}, "linear_attention", [&](size_t i) {
    return full.empty() ? i == 0 || i % 4 != 0
                        : std::count(full.begin(), full.end(), static_cast<int64_t>(i) + 1) == 0;
  });
  return s;
}

}  // namespace moebius
