// SPDX-License-Identifier: Apache-2.0
// Describes Mellum-2: Qwen3-MoE whose windows have a rotation of their own.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec mellum_spec(const ModelConfig& config) {
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  norm_heads(s);
  if (!fields_of(config).strings({"layer_types"}).empty())
    set_windows(config, s, {WindowLayers::kTypes, true, 1024});
  set_typed_ropes(config, s);
  return s;
}

}  // namespace moebius
