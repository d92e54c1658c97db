// SPDX-License-Identifier: Apache-2.0
// Describes MiniMax-M2: q and k normalized over their whole width, part of each head rotated.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec minimax_m2_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  // Released configs state rotary_dim instead of a share of the heads, even beside rope_parameters.
  const Json* rope = config.text.find("rope_parameters");
  const bool share =
      f.has({"partial_rotary_factor"}) ||
      (rope != nullptr && rope->is_object() && rope->find("partial_rotary_factor") != nullptr);
  const int64_t rotated = share ? 0 : f.integer_or({"rotary_dim"}, 0, 0, config.head_dim);
  DecoderSpec s = common_spec(config, static_cast<size_t>(rotated));
  if (f.boolean({"use_qk_norm"}).value_or(true)) norm_projections(s);
  return s;
}

}  // namespace moebius
