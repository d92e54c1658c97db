// SPDX-License-Identifier: Apache-2.0
// DeepSeek-V2, -V3 and Kimi-K2: latent attention (MLA), rotation of neighbouring pairs, YaRN that
// also changes the scale.
#include <cmath>

#include "model/arch/arch.h"

namespace moebius {

DecoderSpec deepseek_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.qk_rope_head_dim));
  s.q_lora = static_cast<size_t>(config.q_lora_rank),
  s.kv_lora = static_cast<size_t>(config.kv_lora_rank);
  s.nope_dim = static_cast<size_t>(config.qk_nope_head_dim),
  s.rope_dim = static_cast<size_t>(config.qk_rope_head_dim);
  s.value_dim = static_cast<size_t>(config.v_head_dim);
  s.kv_heads = s.heads;
  s.rope.interleaved = f.boolean({"rope_interleave"}).value_or(true);
  double scale = 1 / std::sqrt(static_cast<double>(s.nope_dim + s.rope_dim));
  if (s.rope.scaling == RopeScaling::kYarn) {
    const Json* rope = config.text.find("rope_parameters");
    if (rope == nullptr || !rope->is_object()) rope = config.text.find("rope_scaling");
    const double all =
        ConfigFields(*rope, "config.json", "rope_scaling.").number({"mscale_all_dim"}).value_or(0);
    const double m = all == 0 ? 1.0 : yarn_magnitude(s.rope.factor, all);
    scale *= m * m;
  }
  s.attention_scale = static_cast<float>(scale);
  return s;
}

}  // namespace moebius
