// SPDX-License-Identifier: Apache-2.0
// Qwen3-Next and Qwen3.5-MoE (text): three layers of gated delta linear attention to one of full
// attention whose results are gated, norms with 1 + w.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec qwen3_next_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  s.qk_norm = QkNorm::kHead;
  s.norm = NormKind::kRmsOnePlus;
  s.output_gate = true;
  const auto size = [&](const char* name, int64_t fallback, int64_t most) {
    return static_cast<size_t>(f.integer_or({name}, fallback, 1, most));
  };
  s.delta.value_heads = size("linear_num_value_heads", 32, 4096);
  s.delta.key_heads = size("linear_num_key_heads", 16, 4096);
  s.delta.key_dim = size("linear_key_head_dim", 128, 512);
  s.delta.value_dim = size("linear_value_head_dim", 128, 512);
  s.delta.width = size("linear_conv_kernel_dim", 4, 64);
  s.delta_apart = config.model_type.starts_with("qwen3_5");
  const Json* types = config.text.find("layer_types");
  const int64_t every = f.integer_or({"full_attention_interval"}, 4, 1, 1 << 20);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    s.layers[i].linear = (i + 1) % static_cast<size_t>(every) != 0;
    if (types == nullptr || !types->is_array()) continue;
    if (i >= types->items().size() || !types->items()[i].is_string())
      fail("config.json: layer_types has no word for layer {}", i);
    const std::string& type = types->items()[i].as_string();
    if (type != "linear_attention" && type != "full_attention")
      fail("config.json: layer_types[{}] is '{}'; expected linear_attention or full_attention", i,
           printable(type));
    s.layers[i].linear = type == "linear_attention";
  }
  return s;
}

}  // namespace moebius
