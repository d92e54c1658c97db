// SPDX-License-Identifier: Apache-2.0
// Describes LongCat-Flash: a layer of the file is two of DeepSeek-V3's attention with a dense MLP
// each; experts read what the first MLP reads and join behind the second. Latents are scaled up to
// the rows' size.
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec longcat_spec(const ModelConfig& config) {
  using enum LayerRows;
  const ConfigFields f = fields_of(config);
  if (f.boolean({"router_bias"}).value_or(false))
    fail("{}: is true; a router with a bias cannot be run yet", f.label("router_bias"));
  DecoderSpec s = deepseek_spec(config);
  s.norm_epsilon = static_cast<float>(f.number({"rms_norm_eps"}).value_or(1e-5));
  s.rope.interleaved = true;
  if (s.q_lora == 0) fail("{}: is missing", f.label("q_lora_rank"));
  const auto scale = [&](size_t rank) {
    return static_cast<float>(
        std::sqrt(static_cast<double>(config.hidden) / static_cast<double>(rank)));
  };
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.attention_rows.insert(layer.attention_rows.begin(),
                                row_op::scale(kQuery, scale(s.q_lora)));
    layer.latent_rows = {row_op::scale(kLatent, scale(s.kv_lora))};
    if (i % 2 == 0)
      layer.beside = BesideSpec{};
    else
      layer.join_block.push_back(row_op::add(kHidden, kLater));
  }
  return s;
}

}  // namespace moebius
