// SPDX-License-Identifier: Apache-2.0
// Describes Qwen3-Next and Qwen3.5-MoE (text): three layers of gated delta linear attention to one
// of full attention whose results are gated, norms with 1 + w.
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec qwen3_next_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  norm_heads(s);
  s.norm = NormKind::kRmsOnePlus;
  s.gates = GateSpec{};
  for (LayerSpec& layer : s.layers) layer.attended = {row_op::gate(RowOpKind::kGateSigmoid)};
  const auto size = [&](const char* name, int64_t fallback, int64_t most) {
    return static_cast<size_t>(f.integer_or({name}, fallback, 1, most));
  };
  require_silu(config);
  DeltaSpec d;
  d.value_heads = size("linear_num_value_heads", 32, 4096);
  d.key_heads = size("linear_num_key_heads", 16, 4096);
  d.key_dim = size("linear_key_head_dim", 128, 512);
  d.value_dim = size("linear_value_head_dim", 128, 512);
  d.width = size("linear_conv_kernel_dim", 4, 64);
  const bool four = config.family == "qwen4_exp";
  d.by_key_head = !four && !config.model_type.starts_with("qwen3_5");
  s.recurrent = d;
  const auto every = static_cast<size_t>(f.integer_or({"full_attention_interval"}, 4, 1, 1 << 20));
  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].recurrent = (i + 1) % every != 0;
  if (!config.layer_types.empty())
    set_recurrent(config, s, "linear_attention",
                  four ? "indexed_attention full_attention qwen_sparse_attention"
                       : "full_attention attention");
  return s;
}

}  // namespace moebius
