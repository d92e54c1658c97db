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
  const std::vector<std::string> types = f.strings({"layer_types"});
  const Json* stated = config.text.find("sliding_window");
  if (stated != nullptr && stated->is_null()) f.wrong("sliding_window", *stated, "a number");
  const auto window = static_cast<size_t>(f.integer_or({"sliding_window"}, 513, 1, 1 << 30));
  for (size_t i = 0; i < s.layers.size(); ++i)
    if (i < types.size() ? types[i] == "full_attention" : (i + 1) % 5 == 0)
      stop_rotation(s.layers[i]);
    else
      s.layers[i].window = window;
  return s;
}

}  // namespace moebius
