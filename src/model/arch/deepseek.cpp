// SPDX-License-Identifier: Apache-2.0
// Describes DeepSeek-V2, -V3 and Kimi-K2: latent attention (MLA), rotation of neighbouring pairs,
// YaRN that also changes the scale.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec deepseek_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.qk_rope_head_dim));
  LatentSpec latent;
  latent.query = static_cast<size_t>(config.q_lora_rank);
  latent.keys = static_cast<size_t>(config.kv_lora_rank);
  latent.own = static_cast<size_t>(config.qk_nope_head_dim);
  latent.rotated = static_cast<size_t>(config.qk_rope_head_dim);
  s.rope.interleaved = fields_of(config).boolean({"rope_interleave"}).value_or(true);
  double scale = 1 / std::sqrt(static_cast<double>(latent.key_width()));
  if (s.rope.scaling == RopeScaling::kYarn) {
    const double all = ConfigFields(rope_object(config), "config.json", "rope_scaling.")
                           .number({"mscale_all_dim"})
                           .value_or(0);
    const double m = all == 0 ? 1.0 : yarn_magnitude(s.rope.factor, all);
    scale *= m * m;
  }
  each_attention(s, [&](KeyMixer& m) {
    m.latent = latent;
    m.sizes.kv_heads = m.sizes.heads;
    m.sizes.value_dim = static_cast<size_t>(config.v_head_dim);
    m.scale = static_cast<float>(scale);
  });
  return s;
}

// Describes Mistral-4.
DecoderSpec mistral4_spec(const ModelConfig& config) {
  DecoderSpec s = deepseek_spec(config);
  set_temperature(config, s);
  return s;
}

void set_indexers(const ModelConfig& config, DecoderSpec& s) {
  const ConfigFields f = fields_of(config);
  const std::vector<std::string> types = f.strings({"indexer_types"});
  const std::string pattern = f.string({"index_topk_pattern"}).value_or("");
  const int64_t every = f.integer_or({"index_topk_freq"}, 1, 1, 1 << 20),
                offset = f.integer_or({"index_skip_topk_offset"}, 2, 0, 1 << 20);
  bool any = false;
  for (size_t i = 0; i < s.layers.size(); ++i) {
    KeyMixer* m = s.layers[i].keys();
    if (m == nullptr) continue;
    const int64_t since = std::max<int64_t>(static_cast<int64_t>(i) - offset + 1, 0);
    m->choice->own = i < types.size()     ? types[i] == "full"
                     : i < pattern.size() ? pattern[i] == 'F'
                                          : since % every == 0;
    any = any || m->choice->own;
    if (!any)
      fail("{}: layer {} is 'shared'; expected 'full' in the first layer of sparse attention",
           f.label("indexer_types"), i);
  }
}

// Describes DeepSeek-V3.2 and GLM-5: an indexer chooses the keys that a row sees; its rotation has
// pairs of its own. Layers may use the choice of the layer before.
DecoderSpec sparse_deepseek_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = deepseek_spec(config);
  const bool glm = config.family == "glm_moe_dsa", light = config.family == "axk2";
  s.rope.interleaved = true;
  if (config.q_lora_rank == 0)
    fail("{}: is missing; the indexer reads the latent of the queries", f.label("q_lora_rank"));
  ChoiceSpec choice;
  choice.indexer = indexer_of(f,
                              glm     ? 32
                              : light ? 16
                                      : 64,
                              static_cast<size_t>(config.qk_rope_head_dim), 1 << 16);
  choice.rope = 1;
  set_choices(s, choice);
  s.other_ropes.push_back(s.rope);
  s.other_ropes.back().interleaved = glm;
  if (glm) set_indexers(config, s);
  return s;
}

}  // namespace moebius
