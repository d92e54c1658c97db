// SPDX-License-Identifier: Apache-2.0
// Describes Kolibri-1: windows with rotation, full attention without rotation; q and k normalized
// per head, norms on both sides of every branch.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec kolibri1_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  norm_heads(s);
  set_branch_norms(s, {.attention_out = "post_attn_norm", .block_out = "post_ffn_norm"});
  const Json* stated = config.text.find("sliding_window");
  if (stated != nullptr && stated->is_null()) f.wrong("sliding_window", *stated, "a number");
  std::vector<bool> layers =
      layers_called(config, "full_attention", [](size_t i) { return (i + 1) % 5 == 0; });
  layers.flip();
  set_windows(s, layers, size_of(f, {"sliding_window"}, 513));
  rotate_in_windows(s);
  return s;
}

}  // namespace moebius
