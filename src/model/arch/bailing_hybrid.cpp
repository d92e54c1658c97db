// SPDX-License-Identifier: Apache-2.0
// Describes Ling-3 (Bailing hybrid): layers of the delta rule with a bounded decay per key feature,
// and of DeepSeek-V3's attention whose results are gated per head.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec bailing_hybrid_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = deepseek_spec(config);
  s.names = {"attention", "dense o_proj", "attention"};
  s.rope.interleaved = true;
  s.gates = GateSpec{"attention.g_proj", true};
  if (f.boolean({"attention_bias"}).value_or(false))
    fail("{}: is true; its projections have no biases", f.label("attention_bias"));
  const auto size = [&](ConfigFields::Names names, int64_t fallback, int64_t most) {
    return static_cast<size_t>(f.integer_or(names, fallback, 1, most));
  };
  require_silu(config);
  DeltaSpec d;
  d.key_heads = d.value_heads = size({"linear_num_heads"}, config.heads, 4096);
  d.key_dim = d.value_dim = size({"linear_head_dim"}, config.head_dim, 512);
  d.width = size({"linear_conv_kernel_dim", "short_conv_kernel_size"}, 4, 64);
  d.decay_per_key = true;
  d.gate = RowFunction::kSigmoid;
  if (f.boolean({"kda_safe_gate"}).value_or(true))
    d.decay_bound = static_cast<float>(f.number({"kda_lower_bound"}).value_or(-5));
  if (d.decay_bound > 0)
    fail("{}: is {}; expected a negative number", f.label("kda_lower_bound"), d.decay_bound);
  s.recurrent = d;
  const size_t every = size({"layer_group_size"}, 6, 1 << 20);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    s.layers[i].recurrent = (i + 1) % every != 0;
    s.layers[i].attended = {row_op::gate(RowOpKind::kGateSigmoid)};
  }
  if (!config.layer_types.empty()) set_recurrent(config, s, "linear_attention");
  return s;
}

}  // namespace moebius
