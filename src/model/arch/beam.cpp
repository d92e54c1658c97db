// SPDX-License-Identifier: Apache-2.0
// Describes Beam: windows with rotation; full attention without rotation whose queries grow with
// their position; gated results, norms on both sides of every branch, residuals weighed by depth.
#include <cmath>

#include "model/arch/arch.h"

namespace moebius {

DecoderSpec beam_spec(const ModelConfig& config) {
  using enum LayerRows;
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  s.norm = NormKind::kRmsFused;
  norm_heads(s);
  set_branch_norms(s, {.attention_out = "post_attention_layernorm",
                       .block_in = "pre_feedforward_layernorm",
                       .block_out = "post_feedforward_layernorm"});
  s.gates = GateSpec{"self_attn.gate_proj"};
  const Json* cap = config.text.find("final_logit_softcapping");
  if (cap == nullptr || !cap->is_null())
    s.logits_cap = static_cast<float>(f.number({"final_logit_softcapping"}).value_or(30));
  const std::vector<std::string> types = f.strings({"layer_types"});
  const auto window = static_cast<size_t>(f.integer_or({"sliding_window"}, 512, 1, 1 << 30));
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    if (i < types.size() ? types[i] == "sliding_attention"
                         : (i + 1) % 6 != 0 && i + 1 != s.layers.size())
      layer.window = window;
    layer.attended = {row_op::head_bias(kGate, "self_attn.gate_bias"),
                      row_op::gate(RowOpKind::kGateSigmoid)};
    const auto join = [](LayerOps& ops, double n) {
      weigh_residual(ops, static_cast<float>(std::sqrt((n - 1) / n)),
                     static_cast<float>(1 / std::sqrt(n)));
    };
    join(layer.join_attention, 2 * static_cast<double>(i) + 2);
    join(layer.join_block, 2 * static_cast<double>(i) + 3);
  }
  set_typed_ropes(config, s);
  // Layers of a type without an object in rope_parameters do not rotate.
  const Json* ropes = config.text.find("rope_parameters");
  for (LayerSpec& layer : s.layers) {
    const char* type = layer.window != 0 ? "sliding_attention" : "full_attention";
    const Json* own = ropes != nullptr && ropes->is_object() ? ropes->find(type) : nullptr;
    if (own != nullptr ? own->is_object() : layer.window != 0) continue;
    stop_rotation(layer);
    layer.attention_rows.push_back(row_op::power(kQuery, {0.1f, 2048, 1}));
  }
  return s;
}

}  // namespace moebius
