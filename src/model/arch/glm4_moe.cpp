// SPDX-License-Identifier: Apache-2.0
// Describes GLM-4.5 and later: half of each head is rotated, biases on q, k and v, q and k norms in
// the larger models.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec glm4_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  if (f.boolean({"use_qk_norm"}).value_or(false)) norm_heads(s);
  return s;
}

}  // namespace moebius
