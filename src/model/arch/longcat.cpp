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
  s.norm_epsilon = real_of(f, {"rms_norm_eps"}, 1e-5);
  s.rope.interleaved = true;
  if (config.q_lora_rank == 0) fail("{}: is missing", f.label("q_lora_rank"));
  const auto scale = [&](size_t rank) {
    return static_cast<float>(
        std::sqrt(static_cast<double>(config.hidden) / static_cast<double>(rank)));
  };
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    KeyMixer& m = s.keys(i);
    m.rows.insert(m.rows.begin(), row_op::scale(kQuery, scale(m.latent->query)));
    m.latent->rows = {row_op::scale(kLatent, scale(m.latent->keys))};
    if (i % 2 == 0)
      layer.beside = BesideSpec{};
    else
      layer.block.join.push_back(row_op::add(kHidden, kLater));
  }
  return s;
}

}  // namespace moebius
