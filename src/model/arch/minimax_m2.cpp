// SPDX-License-Identifier: Apache-2.0
// MiniMax-M2: q and k normalized over their whole width, part of each head rotated.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec minimax_m2_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  // A config written by transformers 5 says everything in rope_parameters (and its code reads
  // nothing else); older ones have rotary_dim.
  const bool self_contained =
      config.text.find("rope_parameters") != nullptr || f.has({"partial_rotary_factor"});
  const int64_t rotated = self_contained ? 0 : f.integer_or({"rotary_dim"}, 0, 0, config.head_dim);
  DecoderSpec s = common_spec(config, static_cast<size_t>(rotated));
  if (f.boolean({"use_qk_norm"}).value_or(true)) norm_projections(s);
  return s;
}

}  // namespace moebius
