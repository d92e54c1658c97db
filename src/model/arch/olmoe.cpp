// SPDX-License-Identifier: Apache-2.0
// Describes OLMoE: q and k normalized over their whole width; optional clipping of q, k and v
// behind the norms.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec olmoe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  using enum LayerRows;
  const auto most = static_cast<float>(fields_of(config).number({"clip_qkv"}).value_or(0));
  for (LayerSpec& layer : s.layers)
    if (most > 0)
      layer.attention_rows.insert(
          layer.attention_rows.begin(),
          {row_op::clip(kQuery, most), row_op::clip(kKey, most), row_op::clip(kValue, most)});
  norm_projections(s);
  return s;
}

}  // namespace moebius
