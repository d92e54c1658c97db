// SPDX-License-Identifier: Apache-2.0
// Computes the dimensions of every module that config.json implies. Only families whose attention
// follows heads and head_dim are checked strictly; for other and unknown families only what every
// model shares is known.
#include "checkpoint/module_map.h"

namespace moebius {
namespace {

uint64_t u(int64_t v) { return v > 0 ? static_cast<uint64_t>(v) : 0; }

ExpectedShape mlp_shape(uint64_t hidden, uint64_t width, Projection projection) {
  if (hidden == 0 || width == 0) return {};
  if (projection == Projection::kDown) return {hidden, width};
  return {width, hidden};
}

ExpectedShape attention_shape(const ModelConfig& c, const Family& family, std::string_view name) {
  const uint64_t H = u(c.hidden), heads = u(c.heads), d = u(c.head_dim);
  const uint64_t qk = u(c.qk_nope_head_dim + c.qk_rope_head_dim);
  const bool mla = c.kv_lora_rank > 0;
  if (name == "q_proj") return {heads * (mla ? qk : d), H};
  if (name == "k_proj" || name == "v_proj") return {u(c.kv_heads) * d, H};
  if (name == "o_proj") return {H, heads * (mla ? u(c.v_head_dim) : d)};
  if (name == "q_a_proj") return {u(c.q_lora_rank), H};
  if (name == "q_a_layernorm") return {u(c.q_lora_rank), 0};
  if (name == "q_b_proj") return {heads * qk, u(c.q_lora_rank)};
  if (name == "kv_a_proj_with_mqa") return {u(c.kv_lora_rank + c.qk_rope_head_dim), H};
  if (name == "kv_a_layernorm") return {u(c.kv_lora_rank), 0};
  if (name == "kv_b_proj") return {heads * u(c.qk_nope_head_dim + c.v_head_dim), u(c.kv_lora_rank)};
  if (name == "q_norm") return {family.layout.whole_qk_norm ? heads * d : d, 0};
  if (name == "k_norm") return {family.layout.whole_qk_norm ? u(c.kv_heads) * d : d, 0};
  if (name == "sinks") return {heads, 0};
  return {};
}

}  // namespace

ExpectedShape expected_shape(const ModelConfig& c, const Family* family, Part part,
                             std::string_view path, Projection projection, int layer) {
  const uint64_t H = u(c.hidden);
  if (family == nullptr && (part == Part::kExpert || part == Part::kFusedExperts))
    return mlp_shape(H, u(c.moe_intermediate), projection);
  if (lenient(family)) return {};
  switch (part) {
    case Part::kEmbedding:
    case Part::kLmHead:
      return {u(c.vocab), H};
    case Part::kFinalNorm:
      return {H, 0};
    case Part::kDenseMlp:
      return mlp_shape(H, u(c.dense_width(layer)), projection);
    case Part::kRouter:
      return {u(c.experts), H};
    case Part::kSharedExpert:
      return mlp_shape(H, u(c.shared_intermediate), projection);
    case Part::kSharedGate:
      return {1, H};
    case Part::kExpert:
    case Part::kFusedExperts:
      return mlp_shape(H, u(c.moe_intermediate), projection);
    case Part::kBlockParameter:
      return path.ends_with("router.scale") ? ExpectedShape{H, 0} : ExpectedShape{u(c.experts), 0};
    case Part::kLayer:
      if (path == "input_layernorm" || path == "post_attention_layernorm") return {H, 0};
      if (family->layout.strict_shapes && path.starts_with("self_attn."))
        return attention_shape(c, *family, path.substr(10));
      return {};
    default:
      return {};
  }
}

}  // namespace moebius
