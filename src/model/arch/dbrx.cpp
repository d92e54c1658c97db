// SPDX-License-Identifier: Apache-2.0
// Describes DBRX: layer norms without biases, one projection for q, k and v, whose numbers are
// clipped.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec dbrx_spec(const ModelConfig& config) {
  using enum LayerRows;
  const ConfigFields own = nested_fields(config, "attn_config");
  // Published configs have the rotation's base there; configs that transformers wrote have both.
  const double base = config.text.find("rope_parameters") == nullptr
                          ? own.number({"rope_theta"}).value_or(10000)
                          : 0;
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim), base);
  const size_t kv_heads = size_of(own, {"kv_n_heads"}, 1, config.heads);
  if (static_cast<size_t>(config.heads) % kv_heads != 0)
    fail("{}: is {}; expected a divisor of {} heads", own.label("kv_n_heads"), kv_heads,
         config.heads);
  s.norm = NormKind::kLayer;
  s.norm_epsilon = 1e-5f;
  set_branch_norms(s,
                   {.attention_in = "norm_attn_norm.norm_1", .block_in = "norm_attn_norm.norm_2"});
  const double clip = own.number({"clip_qkv"}).value_or(0);
  if (own.has({"clip_qkv"}) && !(clip > 0))
    fail("{}: is {}; expected a positive number", own.label("clip_qkv"), clip);
  each_attention(s, [&](KeyMixer& m) {
    m.names = {"norm_attn_norm.attn", "out_proj", {}, "Wqkv"};
    m.sizes.kv_heads = kv_heads;
    if (clip > 0)
      for (const LayerRows rows : {kQuery, kKey, kValue})
        m.rows.insert(m.rows.begin(), row_op::clip(rows, static_cast<float>(clip)));
  });
  return s;
}

}  // namespace moebius
