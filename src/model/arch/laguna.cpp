// SPDX-License-Identifier: Apache-2.0
// Describes Laguna: windows with a rotation of their own, heads by layer, results gated by softplus
// of a projection, one gate per head or per feature.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec laguna_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  norm_heads(s);
  const Json* gating = config.text.find("gating");
  const bool per_head = gating == nullptr || (gating->is_bool() && gating->as_bool()) ||
                        (gating->is_string() && gating->as_string() == "per-head");
  set_gates(s, {"self_attn.g_proj", per_head}, RowOpKind::kGateSoftplus);
  if (!f.strings({"layer_types"}).empty())
    set_windows(config, s, {WindowLayers::kTypes, true, 512});
  const std::vector<int64_t> heads = f.integers({"num_attention_heads_per_layer"}, 1, 1 << 20);
  for (size_t i = 0; i < std::min(heads.size(), s.layers.size()); ++i) {
    HeadSizes& n = s.keys(i).sizes;
    n.heads = static_cast<size_t>(heads[i]);
    if (n.heads % n.kv_heads != 0)
      fail("{}: layer {} has {} heads; expected a multiple of {} key-value heads",
           f.label("num_attention_heads_per_layer"), i, heads[i], n.kv_heads);
  }
  set_typed_ropes(config, s);
  return s;
}

}  // namespace moebius
