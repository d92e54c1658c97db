// SPDX-License-Identifier: Apache-2.0
// Describes Ling-3 (Bailing hybrid): layers of the delta rule with a bounded decay per key feature,
// and of DeepSeek-V3's attention whose results are gated per head.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec bailing_hybrid_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = deepseek_spec(config);
  s.rope.interleaved = true;
  each_attention(s, [](KeyMixer& m) { m.names = {"attention", "dense o_proj"}; });
  set_gates(s, {"attention.g_proj", true});
  refuse_biases(f);
  require_silu(config);
  DeltaSpec d;
  d.key_heads = d.value_heads = size_of(f, {"linear_num_heads"}, config.heads, 4096);
  d.key_dim = d.value_dim = size_of(f, {"linear_head_dim"}, config.head_dim, 512);
  d.width = size_of(f, {"linear_conv_kernel_dim", "short_conv_kernel_size"}, 4, 64);
  d.decay_per_key = true;
  d.gate = RowFunction::kSigmoid;
  if (f.boolean({"kda_safe_gate"}).value_or(true))
    d.decay_bound = real_of(f, {"kda_lower_bound"}, -5);
  if (d.decay_bound > 0)
    fail("{}: is {}; expected a negative number", f.label("kda_lower_bound"), d.decay_bound);
  const size_t every = size_of(f, {"layer_group_size"}, 6, 1 << 20);
  set_recurrent(config, s, {d, "attention"}, "linear_attention",
                [&](size_t i) { return (i + 1) % every != 0; });
  return s;
}

}  // namespace moebius
