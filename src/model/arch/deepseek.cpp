// SPDX-License-Identifier: Apache-2.0
// Describes DeepSeek-V2, -V3 and Kimi-K2: latent attention (MLA), rotation of neighbouring pairs,
// YaRN that also changes the scale.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec deepseek_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.qk_rope_head_dim));
  s.q_lora = static_cast<size_t>(config.q_lora_rank);
  s.kv_lora = static_cast<size_t>(config.kv_lora_rank);
  s.nope_dim = static_cast<size_t>(config.qk_nope_head_dim);
  s.rope_dim = static_cast<size_t>(config.qk_rope_head_dim);
  s.value_dim = static_cast<size_t>(config.v_head_dim);
  s.kv_heads = s.heads;
  s.rope.interleaved = f.boolean({"rope_interleave"}).value_or(true);
  double scale = 1 / std::sqrt(static_cast<double>(s.nope_dim + s.rope_dim));
  if (s.rope.scaling == RopeScaling::kYarn) {
    const double all = ConfigFields(rope_object(config), "config.json", "rope_scaling.")
                           .number({"mscale_all_dim"})
                           .value_or(0);
    const double m = all == 0 ? 1.0 : yarn_magnitude(s.rope.factor, all);
    scale *= m * m;
  }
  s.attention_scale = static_cast<float>(scale);
  return s;
}

// Describes Mistral-4: Llama-4's growing temperature on the queries, by positions of the unscaled
// model.
DecoderSpec mistral4_spec(const ModelConfig& config) {
  DecoderSpec s = deepseek_spec(config);
  const auto beta = ConfigFields(rope_object(config), "config.json", "rope_parameters.")
                        .number({"llama_4_scaling_beta"});
  const RowOp::Temperature temperature{static_cast<float>(beta.value_or(0)),
                                       static_cast<float>(s.rope.original_length), 0};
  if (temperature.scale != 0)
    for (LayerSpec& layer : s.layers)
      layer.attention_rows.push_back(row_op::temperature(LayerRows::kQuery, temperature));
  return s;
}

void set_indexers(const ModelConfig& config, DecoderSpec& s) {
  const ConfigFields f = fields_of(config);
  const std::vector<std::string> types = f.strings({"indexer_types"});
  const std::string pattern = f.string({"index_topk_pattern"}).value_or("");
  const int64_t every = f.integer_or({"index_topk_freq"}, 1, 1, 1 << 20),
                offset = f.integer_or({"index_skip_topk_offset"}, 2, 0, 1 << 20);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    if (s.layers[i].recurrent) continue;
    const int64_t since = std::max<int64_t>(static_cast<int64_t>(i) - offset + 1, 0);
    s.layers[i].indexes = i < types.size()     ? types[i] == "full"
                          : i < pattern.size() ? pattern[i] == 'F'
                                               : since % every == 0;
    if (!s.layers[choice_from(s, i)].indexes)
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
  s.indexer.heads = static_cast<size_t>(f.integer_or({"index_n_heads"},
                                                     glm     ? 32
                                                     : light ? 16
                                                             : 64,
                                                     1, 1 << 16));
  s.indexer.head_dim = static_cast<size_t>(f.integer_or({"index_head_dim"}, 128, 1, 1 << 16));
  s.indexer.top_k = static_cast<size_t>(f.integer_or({"index_topk"}, 2048, 1, 1 << 30));
  if (s.q_lora == 0)
    fail("{}: is missing; the indexer reads the latent of the queries", f.label("q_lora_rank"));
  if (s.indexer.head_dim < s.rope_dim)
    fail("{}: is {}; expected at least qk_rope_head_dim = {}", f.label("index_head_dim"),
         s.indexer.head_dim, s.rope_dim);
  s.other_ropes.push_back(s.rope);
  s.other_ropes.back().interleaved = glm;
  s.indexer_rope = 1;
  if (glm)
    set_indexers(config, s);
  else
    for (LayerSpec& layer : s.layers) layer.indexes = true;
  return s;
}

}  // namespace moebius
