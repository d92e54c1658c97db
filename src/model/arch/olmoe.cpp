// SPDX-License-Identifier: Apache-2.0
// Describes OLMoE: q and k normalized over their whole width; optional clipping of q, k and v
// behind the norms.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec olmoe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  using enum LayerRows;
  const float most = real_of(fields_of(config), {"clip_qkv"}, 0);
  each_attention(s, [&](KeyMixer& m) {
    if (most > 0)
      m.rows.insert(m.rows.begin(), {row_op::clip(kQuery, most), row_op::clip(kKey, most),
                                     row_op::clip(kValue, most)});
  });
  norm_projections(s);
  return s;
}

}  // namespace moebius
