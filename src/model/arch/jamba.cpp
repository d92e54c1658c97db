// SPDX-License-Identifier: Apache-2.0
// Describes Jamba: Mamba-1 with attention that does not rotate every few layers.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec jamba_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  set_branch_norms(s, {.block_in = "pre_ff_layernorm"});
  stop_rotation(s);
  require_silu(config);
  const auto hidden = static_cast<size_t>(config.hidden);
  Mamba1Spec m;
  m.features = size_of(f, {"mamba_expand"}, 2, 64) * hidden;
  m.state = size_of(f, {"mamba_d_state"}, 16, 65536);
  m.width = size_of(f, {"mamba_d_conv"}, 4, 64);
  const Json* rank = config.text.find("mamba_dt_rank");
  m.rank = rank == nullptr || (rank->is_string() && rank->as_string() == "auto")
               ? (hidden + 15) / 16
               : size_of(f, {"mamba_dt_rank"}, 0, 65536);
  const size_t period = size_of(f, {"attn_layer_period"}, 8, 1 << 20);
  const auto offset = static_cast<size_t>(f.integer_or({"attn_layer_offset"}, 4, 0, 1 << 20));
  set_recurrent(config, s, {m, "mamba"}, "linear_attention mamba",
                [&](size_t i) { return i % period != offset; });
  return s;
}

}  // namespace moebius
