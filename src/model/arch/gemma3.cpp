// SPDX-License-Identifier: Apache-2.0
// Describes Gemma-3 (text): norms with 1 + w on both sides of every branch, windows with a rotation
// of their own in most layers.
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec gemma3_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  const auto dims = static_cast<size_t>(config.head_dim);
  DecoderSpec s = common_spec(config, dims);
  if (f.boolean({"use_bidirectional_attention"}).value_or(false))
    fail("{}: is true; only causal attention can be run", f.label("use_bidirectional_attention"));
  if (f.number({"attn_logit_softcapping"}).value_or(0) != 0)
    fail("{}: is given; capped scores cannot be run yet", f.label("attn_logit_softcapping"));
  s.norm = NormKind::kRmsOnePlus;
  s.ends.multiplier = std::sqrt(static_cast<float>(config.hidden));
  s.ends.round_multiplier = true;
  s.ends.cap = real_of(f, {"final_logit_softcapping"}, 0);
  norm_heads(s);
  set_branch_norms(s, {.attention_out = "post_attention_layernorm",
                       .block_in = "pre_feedforward_layernorm",
                       .block_out = "post_feedforward_layernorm"});
  const double scalar = f.number({"query_pre_attn_scalar"}).value_or(256);
  if (!(scalar > 0))
    fail("{}: is {}; expected a positive number", f.label("query_pre_attn_scalar"), scalar);
  each_attention(s, [&](KeyMixer& m) { m.scale = static_cast<float>(1 / std::sqrt(scalar)); });
  const size_t every = size_of(f, {"sliding_window_pattern"}, 6, 1 << 20);
  set_windows(
      s, layers_called(config, "sliding_attention", [&](size_t i) { return (i + 1) % every != 0; }),
      size_of(f, {"sliding_window"}, 4096, int64_t{1} << 40));
  if (rope_object(config).find("full_attention") != nullptr) {
    set_typed_ropes(config, s);
    return s;
  }
  // Older configs scale full attention alone.
  RopeSpec windows;
  windows.dims = dims;
  windows.base = f.number({"rope_local_base_freq"}).value_or(10000);
  if (!(windows.base > 0))
    fail("{}: is {}; expected a positive number", f.label("rope_local_base_freq"), windows.base);
  s.other_ropes = {windows};
  each_attention(s, [](KeyMixer& m) { set_rope(m, m.window != 0 ? 1 : 0); });
  return s;
}

}  // namespace moebius
