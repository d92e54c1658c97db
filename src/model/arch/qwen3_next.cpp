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
  set_gates(s, {});
  require_silu(config);
  DeltaSpec d;
  d.value_heads = size_of(f, {"linear_num_value_heads"}, 32, 4096);
  d.key_heads = size_of(f, {"linear_num_key_heads"}, 16, 4096);
  d.key_dim = size_of(f, {"linear_key_head_dim"}, 128, 512);
  d.value_dim = size_of(f, {"linear_value_head_dim"}, 128, 512);
  d.width = size_of(f, {"linear_conv_kernel_dim"}, 4, 64);
  const bool four = config.family == "qwen4_exp";
  d.by_key_head = !four && !config.model_type.starts_with("qwen3_5");
  const size_t every = size_of(f, {"full_attention_interval"}, 4, 1 << 20);
  set_recurrent(
      config, s, {d}, "linear_attention", [&](size_t i) { return (i + 1) % every != 0; },
      four ? "indexed_attention full_attention qwen_sparse_attention" : "full_attention attention");
  return s;
}

}  // namespace moebius
