// SPDX-License-Identifier: Apache-2.0
// Describes Jamba: Mamba-1 with attention that does not rotate every few layers.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec jamba_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.names.recurrent = "mamba";
  set_branch_norms(s, {.block_in = "pre_ff_layernorm"});
  require_silu(config);
  const auto size = [&](const char* name, int64_t fallback, int64_t most) {
    return static_cast<size_t>(f.integer_or({name}, fallback, 1, most));
  };
  const auto hidden = static_cast<size_t>(config.hidden);
  Mamba1Spec m;
  m.features = size("mamba_expand", 2, 64) * hidden;
  m.state = size("mamba_d_state", 16, 65536);
  m.width = size("mamba_d_conv", 4, 64);
  const Json* rank = config.text.find("mamba_dt_rank");
  m.rank = rank == nullptr || (rank->is_string() && rank->as_string() == "auto")
               ? (hidden + 15) / 16
               : size("mamba_dt_rank", 0, 65536);
  s.recurrent = m;
  const size_t period = size("attn_layer_period", 8, 1 << 20);
  const auto offset = static_cast<size_t>(f.integer_or({"attn_layer_offset"}, 4, 0, 1 << 20));
  for (size_t i = 0; i < s.layers.size(); ++i) {
    stop_rotation(s.layers[i]);
    s.layers[i].recurrent = i % period != offset;
  }
  if (!config.layer_types.empty()) set_recurrent(config, s, "linear_attention mamba");
  return s;
}

}  // namespace moebius
