// SPDX-License-Identifier: Apache-2.0
// Describes DBRX: layer norms without biases, one projection for q, k and v, whose numbers are
// clipped.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec dbrx_spec(const ModelConfig& config) {
  using enum LayerRows;
  static const Json kNothing = Json::object();
  const Json* nested = config.text.find("attn_config");
  const bool apart = nested != nullptr && nested->is_object();
  const ConfigFields own(apart ? *nested : kNothing, "config.json", "attn_config.");
  // Published configs have the rotation's base there; configs that transformers wrote have both.
  const double base = config.text.find("rope_parameters") == nullptr
                          ? own.number({"rope_theta"}).value_or(10000)
                          : 0;
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim), base);
  s.kv_heads = static_cast<size_t>(own.integer_or({"kv_n_heads"}, 1, 1, config.heads));
  if (s.heads % s.kv_heads != 0)
    fail("{}: is {}; expected a divisor of {} heads", own.label("kv_n_heads"), s.kv_heads, s.heads);
  s.names = {"norm_attn_norm.attn", "out_proj", "", {}, "Wqkv"};
  s.norm = NormKind::kLayer;
  s.norm_epsilon = 1e-5f;
  set_branch_norms(s,
                   {.attention_in = "norm_attn_norm.norm_1", .block_in = "norm_attn_norm.norm_2"});
  const double clip = own.number({"clip_qkv"}).value_or(0);
  if (own.has({"clip_qkv"}) && !(clip > 0))
    fail("{}: is {}; expected a positive number", own.label("clip_qkv"), clip);
  if (clip > 0)
    for (LayerSpec& layer : s.layers)
      for (const LayerRows rows : {kQuery, kKey, kValue})
        layer.attention_rows.insert(layer.attention_rows.begin(),
                                    row_op::clip(rows, static_cast<float>(clip)));
  return s;
}

}  // namespace moebius
