// SPDX-License-Identifier: Apache-2.0
// The one table of model families (see families.h). Facts only: names, orders and rules, no code
// per family.
#include "checkpoint/families.h"

#include <array>

namespace moebius {
namespace {

// Pieces shared by several entries.
#define MOEBIUS_NORMS "input_layernorm! post_attention_layernorm! "
#define MOEBIUS_GQA \
  MOEBIUS_NORMS "self_attn.q_proj! self_attn.k_proj! self_attn.v_proj! self_attn.o_proj! "
#define MOEBIUS_MLA                                                                 \
  MOEBIUS_NORMS                                                                     \
  "self_attn.q_proj self_attn.q_a_proj self_attn.q_a_layernorm self_attn.q_b_proj " \
  "self_attn.kv_a_proj_with_mqa! self_attn.kv_a_layernorm! self_attn.kv_b_proj! "   \
  "self_attn.o_proj! "
#define MOEBIUS_QK_NORM "self_attn.q_norm self_attn.k_norm "
#define MOEBIUS_DELTA_NET                                                                          \
  "input_layernorm! post_attention_layernorm! self_attn.q_proj self_attn.k_proj self_attn.v_proj " \
  "self_attn.o_proj self_attn.q_norm self_attn.k_norm linear_attn.in_proj_qkvz "                   \
  "linear_attn.in_proj_ba linear_attn.in_proj_qkv linear_attn.in_proj_z linear_attn.in_proj_b "    \
  "linear_attn.in_proj_a linear_attn.conv1d linear_attn.A_log linear_attn.dt_bias "                \
  "linear_attn.norm linear_attn.out_proj "
#define MOEBIUS_CORRECTION "gate.e_score_correction_bias e_score_correction_bias"

constexpr std::array kFamilies = {
    Family{.key = "qwen3_moe",
           .architectures = "Qwen3MoeForCausalLM",
           .model_types = "qwen3_moe",
           .routing = RoutingRule::kSoftmax,
           .layers = LayerRule::kSparseStep,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA "self_attn.q_norm! self_attn.k_norm!",
           .router = "gate",
           .parameters = "",
           .shared_names = "",
           .top = ""},
    Family{.key = "qwen3_vl_moe",
           .architectures = "Qwen3VLMoeForConditionalGeneration",
           .model_types = "qwen3_vl_moe qwen3_vl_moe_text",
           .routing = RoutingRule::kSoftmaxAlways,
           .layers = LayerRule::kSparseStep,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA "self_attn.q_norm! self_attn.k_norm!",
           .router = "gate",
           .parameters = "",
           .shared_names = "",
           .top = "",
           .fused_transposed = true},
    Family{.key = "olmoe",
           .architectures = "OlmoeForCausalLM",
           .model_types = "olmoe",
           .routing = RoutingRule::kSoftmax,
           .layers = LayerRule::kAll,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA "self_attn.q_norm! self_attn.k_norm!",
           .router = "gate",
           .parameters = "",
           .shared_names = "",
           .top = "",
           .whole_qk_norm = true},
    Family{.key = "mixtral",
           .architectures = "MixtralForCausalLM",
           .model_types = "mixtral",
           .routing = RoutingRule::kSoftmaxAlways,
           .layers = LayerRule::kAll,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA,
           .router = "gate router",
           .parameters = "",
           .shared_names = "",
           .top = ""},
    Family{.key = "qwen2_moe",
           .architectures = "Qwen2MoeForCausalLM",
           .model_types = "qwen2_moe",
           .routing = RoutingRule::kSoftmax,
           .layers = LayerRule::kSparseStep,
           .shared = SharedRule::kGatedWidth,
           .layer = MOEBIUS_GQA,
           .router = "gate",
           .parameters = "",
           .shared_names = "shared_expert",
           .top = ""},
    Family{.key = "deepseek_v2",
           .architectures = "DeepseekV2ForCausalLM",
           .model_types = "deepseek_v2",
           .routing = RoutingRule::kDeepseekV2,
           .layers = LayerRule::kFirstDense,
           .shared = SharedRule::kCount,
           .layer = MOEBIUS_MLA,
           .router = "gate",
           .parameters = MOEBIUS_CORRECTION,
           .shared_names = "shared_experts",
           .top = ""},
    Family{
        .key = "deepseek_v3",
        .architectures = "DeepseekV3ForCausalLM KimiK2ForCausalLM KimiK25ForConditionalGeneration",
        .model_types = "deepseek_v3 kimi_k2 kimi_k25",
        .routing = RoutingRule::kDeepseekV3,
        .layers = LayerRule::kFirstDense,
        .shared = SharedRule::kCount,
        .layer = MOEBIUS_MLA,
        .router = "gate",
        .parameters = MOEBIUS_CORRECTION,
        .shared_names = "shared_experts",
        .top = ""},
    Family{.key = "glm4_moe",
           .architectures = "Glm4MoeForCausalLM",
           .model_types = "glm4_moe",
           .routing = RoutingRule::kDeepseekV3,
           .layers = LayerRule::kFirstDense,
           .shared = SharedRule::kCount,
           .layer = MOEBIUS_GQA MOEBIUS_QK_NORM,
           .router = "gate",
           .parameters = MOEBIUS_CORRECTION,
           .shared_names = "shared_experts",
           .top = ""},
    Family{.key = "gpt_oss",
           .architectures = "GptOssForCausalLM",
           .model_types = "gpt_oss",
           .routing = RoutingRule::kSoftmaxOverTopk,
           .layers = LayerRule::kAll,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA "self_attn.sinks!",
           .router = "router",
           .parameters = "",
           .shared_names = "",
           .top = "",
           .fused_transposed = true,
           .fused_order = FusedOrder::kInterleaved,
           .expert_bias = true},
    Family{.key = "llama4",
           .architectures = "Llama4ForConditionalGeneration Llama4ForCausalLM",
           .model_types = "llama4 llama4_text",
           .routing = RoutingRule::kLlama4,
           .layers = LayerRule::kInterleave,
           .shared = SharedRule::kSameWidth,
           .layer = MOEBIUS_GQA,
           .router = "router",
           .parameters = "",
           .shared_names = "shared_expert",
           .top = "",
           .fused_transposed = true},
    Family{.key = "granitemoe",
           .architectures = "GraniteMoeForCausalLM",
           .model_types = "granitemoe",
           .routing = RoutingRule::kSoftmaxOverTopk,
           .layers = LayerRule::kAll,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA,
           .router = "router.layer router gate",
           .parameters = "",
           .shared_names = "",
           .top = ""},
    Family{.key = "phimoe",
           .architectures = "PhimoeForCausalLM PhiMoEForCausalLM",
           .model_types = "phimoe",
           .routing = RoutingRule::kSparseMixer,
           .layers = LayerRule::kAll,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA,
           .router = "gate router",
           .parameters = "",
           .shared_names = "",
           .top = ""},
    Family{.key = "minimax_m2",
           .architectures = "MiniMaxM2ForCausalLM",
           .model_types = "minimax_m2",
           .routing = RoutingRule::kMiniMax,
           .layers = LayerRule::kAll,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA MOEBIUS_QK_NORM,
           .router = "gate",
           .parameters = MOEBIUS_CORRECTION,
           .shared_names = "",
           .top = "",
           .whole_qk_norm = true},
    Family{.key = "qwen3_next",
           .architectures =
               "Qwen3NextForCausalLM Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
           .model_types = "qwen3_next qwen3_5_moe qwen3_5_moe_text",
           .routing = RoutingRule::kSoftmaxDefaultOn,
           .layers = LayerRule::kSparseStep,
           .shared = SharedRule::kGatedWidth,
           .layer = MOEBIUS_DELTA_NET,
           .router = "gate",
           .parameters = "",
           .shared_names = "shared_expert",
           .top = "",
           .strict_shapes = false},
    Family{.key = "gemma4",
           .architectures = "Gemma4ForConditionalGeneration Gemma4ForCausalLM",
           .model_types = "gemma4 gemma4_text",
           .routing = RoutingRule::kGemma4,
           .layers = LayerRule::kFlag,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_NORMS
           "self_attn.q_proj! self_attn.k_proj self_attn.v_proj self_attn.o_proj! " MOEBIUS_QK_NORM
           "self_attn.v_norm pre_feedforward_layernorm post_feedforward_layernorm "
           "pre_feedforward_layernorm_2 post_feedforward_layernorm_1 post_feedforward_layernorm_2 "
           "layer_scalar per_layer_input_gate per_layer_projection post_per_layer_input_norm",
           .router = "router.proj",
           .parameters = "router.scale router.per_expert_scale per_expert_scale",
           .shared_names = "",
           .top = "embed_tokens_per_layer per_layer_model_projection per_layer_projection_norm",
           .block_is_layer = true,
           .strict_shapes = false},
    Family{.key = "qwen3",
           .architectures = "Qwen3ForCausalLM",
           .model_types = "qwen3",
           .routing = RoutingRule::kNone,
           .layers = LayerRule::kAll,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA "self_attn.q_norm! self_attn.k_norm!",
           .router = "",
           .parameters = "",
           .shared_names = "",
           .top = ""},
    Family{.key = "llama",
           .architectures = "LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM",
           .model_types = "llama mistral qwen2",
           .routing = RoutingRule::kNone,
           .layers = LayerRule::kAll,
           .shared = SharedRule::kNone,
           .layer = MOEBIUS_GQA,
           .router = "",
           .parameters = "",
           .shared_names = "",
           .top = ""},
};

}  // namespace

std::span<const Family> families() { return kFamilies; }

bool in_list(std::string_view list, std::string_view word) {
  bool found = false;
  for_each_word(list, [&](std::string_view w, bool) { found = found || w == word; });
  return found && !word.empty();
}

const Family* find_family(std::string_view architecture, std::string_view model_type) {
  for (const Family& f : kFamilies)
    if (in_list(f.architectures, architecture)) return &f;
  for (const Family& f : kFamilies)
    if (in_list(f.model_types, model_type)) return &f;
  return nullptr;
}

const Family* family_by_key(std::string_view key) {
  for (const Family& f : kFamilies)
    if (f.key == key) return &f;
  return nullptr;
}

}  // namespace moebius
