// SPDX-License-Identifier: Apache-2.0
// OLMoE: q and k normalized over their whole width; optional clipping of q, k and v behind the
// norms.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec olmoe_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config);
  s.qk_norm = QkNorm::kWhole;
  s.clip_qkv = static_cast<float>(fields_of(config).number({"clip_qkv"}).value_or(0));
  return s;
}

}  // namespace moebius
