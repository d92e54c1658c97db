// SPDX-License-Identifier: Apache-2.0
// Holds the one table of model families (see families.h): names, orders and rules, without code per
// family.
#include "checkpoint/families.h"

#include <vector>

namespace moebius {
namespace {

// Words that several entries share.
#define MOEBIUS_NORMS "input_layernorm! post_attention_layernorm! "
#define MOEBIUS_GQA \
  MOEBIUS_NORMS "self_attn.q_proj! self_attn.k_proj! self_attn.v_proj! self_attn.o_proj! "
#define MOEBIUS_MLA                                                                 \
  MOEBIUS_NORMS                                                                     \
  "self_attn.q_proj self_attn.q_a_proj self_attn.q_a_layernorm self_attn.q_b_proj " \
  "self_attn.kv_a_proj_with_mqa! self_attn.kv_a_layernorm! self_attn.kv_b_proj! "   \
  "self_attn.o_proj! "
#define MOEBIUS_INDEXER                                                   \
  "self_attn.indexer.wq_b self_attn.indexer.wk self_attn.indexer.k_norm " \
  "self_attn.indexer.weights_proj "
#define MOEBIUS_QK_NORM "self_attn.q_norm self_attn.k_norm "
#define MOEBIUS_DELTA_NET                                                                          \
  "input_layernorm! post_attention_layernorm! self_attn.q_proj self_attn.k_proj self_attn.v_proj " \
  "self_attn.o_proj self_attn.q_norm self_attn.k_norm linear_attn.in_proj_qkvz "                   \
  "linear_attn.in_proj_ba linear_attn.in_proj_qkv linear_attn.in_proj_z linear_attn.in_proj_b "    \
  "linear_attn.in_proj_a linear_attn.conv1d linear_attn.A_log linear_attn.dt_bias "                \
  "linear_attn.norm linear_attn.out_proj "
#define MOEBIUS_SOME_GQA "self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj "
#define MOEBIUS_MAMBA \
  "mamba.in_proj mamba.conv1d mamba.A_log mamba.D mamba.dt_bias mamba.norm mamba.out_proj "
#define MOEBIUS_NORMED_GQA MOEBIUS_GQA "self_attn.q_norm! self_attn.k_norm!"
#define MOEBIUS_CORRECTION "gate.e_score_correction_bias e_score_correction_bias"

using enum RoutingRule;

// Makes a row: what all rows state, then by name what differs from the defaults. Without model
// types, a family has one, its key; without names of a router, a mixture's is called "gate".
constexpr Family known(std::string_view key, std::string_view architectures, RoutingRule routing,
                       std::string_view layer, Family rest = {}) {
  rest.key = key;
  rest.architectures = architectures;
  rest.routing = routing;
  rest.layer = layer;
  if (rest.model_types.empty()) rest.model_types = key;
  if (rest.router.empty() && routing != kNone) rest.router = "gate";
  return rest;
}

// Makes a row of a family whose first layers are dense, and whose routers and shared experts are
// DeepSeek's.
constexpr Family like_deepseek(std::string_view key, std::string_view architectures,
                               RoutingRule routing, std::string_view layer, Family rest = {}) {
  rest.layers = LayerRule::kFirstDense;
  rest.shared = SharedRule::kCount;
  rest.parameters = MOEBIUS_CORRECTION;
  rest.shared_names = "shared_experts";
  return known(key, architectures, routing, layer, rest);
}

constexpr Family kFamilies[] = {
    known("qwen3_moe", "Qwen3MoeForCausalLM", kSoftmax, MOEBIUS_NORMED_GQA,
          {.layers = LayerRule::kSparseStep}),
    known("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", kSoftmaxAlways, MOEBIUS_NORMED_GQA,
          {.model_types = "qwen3_vl_moe qwen3_vl_moe_text",
           .layers = LayerRule::kSparseStep,
           .fused_transposed = true}),
    known("olmoe", "OlmoeForCausalLM", kSoftmax, MOEBIUS_NORMED_GQA, {.whole_qk_norm = true}),
    known("mixtral", "MixtralForCausalLM", kSoftmaxAlways, MOEBIUS_GQA, {.router = "gate router"}),
    known("qwen2_moe", "Qwen2MoeForCausalLM", kSoftmax, MOEBIUS_GQA,
          {.layers = LayerRule::kSparseStep,
           .shared = SharedRule::kGatedWidth,
           .shared_names = "shared_expert"}),
    like_deepseek("deepseek_v2", "DeepseekV2ForCausalLM", kDeepseekV2, MOEBIUS_MLA),
    like_deepseek("deepseek_v3",
                  "DeepseekV3ForCausalLM KimiK2ForCausalLM KimiK25ForConditionalGeneration "
                  "Glm4MoeLiteForCausalLM",
                  kDeepseekV3, MOEBIUS_MLA,
                  {.model_types = "deepseek_v3 kimi_k2 kimi_k25 glm4_moe_lite"}),
    like_deepseek("deepseek_v32", "DeepseekV32ForCausalLM", kDeepseekV3,
                  MOEBIUS_MLA MOEBIUS_INDEXER),
    like_deepseek("glm_moe_dsa", "GlmMoeDsaForCausalLM", kDeepseekV3, MOEBIUS_MLA MOEBIUS_INDEXER),
    known("mistral4", "Mistral4ForCausalLM", kSoftmaxGroups, MOEBIUS_MLA,
          {.layers = LayerRule::kFirstDense,
           .shared = SharedRule::kCount,
           .shared_names = "shared_experts"}),
    like_deepseek("glm4_moe", "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration", kDeepseekV3,
                  MOEBIUS_GQA MOEBIUS_QK_NORM,
                  {.model_types = "glm4_moe glm4v_moe glm4v_moe_text"}),
    known("gpt_oss", "GptOssForCausalLM", kSoftmaxOverTopk, MOEBIUS_GQA "self_attn.sinks!",
          {.router = "router",
           .fused_transposed = true,
           .fused_order = FusedOrder::kInterleaved,
           .expert_bias = true,
           .activation = ActivationRule::kOai}),
    known("llama4", "Llama4ForConditionalGeneration Llama4ForCausalLM", kLlama4, MOEBIUS_GQA,
          {.model_types = "llama4 llama4_text",
           .layers = LayerRule::kInterleave,
           .shared = SharedRule::kSameWidth,
           .router = "router",
           .shared_names = "shared_expert",
           .fused_transposed = true}),
    known("granitemoe", "GraniteMoeForCausalLM", kSoftmaxOverTopk, MOEBIUS_GQA,
          {.router = "router.layer router gate"}),
    known("phimoe", "PhimoeForCausalLM PhiMoEForCausalLM", kSparseMixer, MOEBIUS_GQA,
          {.router = "gate router"}),
    known("minimax_m2", "MiniMaxM2ForCausalLM", kSigmoidBias, MOEBIUS_GQA MOEBIUS_QK_NORM,
          {.parameters = MOEBIUS_CORRECTION, .whole_qk_norm = true}),
    known("qwen3_next",
          "Qwen3NextForCausalLM Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
          kSoftmaxDefaultOn, MOEBIUS_DELTA_NET,
          {.model_types = "qwen3_next qwen3_5_moe qwen3_5_moe_text",
           .layers = LayerRule::kSparseStep,
           .shared = SharedRule::kGatedWidth,
           .shared_names = "shared_expert",
           .strict_shapes = false}),
    known("qwen3_omni_moe",
          "Qwen3OmniMoeForConditionalGeneration Qwen3OmniMoeThinkerForConditionalGeneration",
          kSoftmaxDefaultOn, MOEBIUS_NORMED_GQA,
          {.model_types = "qwen3_omni_moe qwen3_omni_moe_thinker qwen3_omni_moe_text",
           .layers = LayerRule::kSparseStep}),
    known("solar_open", "SolarOpenForCausalLM", kDeepseekV3, MOEBIUS_GQA,
          {.shared = SharedRule::kCount,
           .parameters = MOEBIUS_CORRECTION,
           .shared_names = "shared_experts"}),
    like_deepseek("dots1", "Dots1ForCausalLM", kDeepseekV3, MOEBIUS_NORMED_GQA),
    known("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", kSoftmaxBias, MOEBIUS_GQA,
          {.layers = LayerRule::kInterval,
           .shared = SharedRule::kCount,
           .parameters = "moe_statics.e_score_correction_bias",
           .shared_names = "shared_experts",
           .correction_counts = true}),
    like_deepseek("exaone_moe", "ExaoneMoeForCausalLM", kDeepseekV3, MOEBIUS_NORMED_GQA),
    known("hunyuan_v1_moe", "HunYuanMoEV1ForCausalLM", kSoftmaxAlways,
          MOEBIUS_GQA "self_attn.query_layernorm! self_attn.key_layernorm!",
          {.shared = SharedRule::kSameWidth, .router = "gate.wg", .shared_names = "shared_mlp"}),
    known("hy_v3", "HYV3ForCausalLM", kSigmoidBias, MOEBIUS_NORMED_GQA,
          {.layers = LayerRule::kFirstDense,
           .shared = SharedRule::kCount,
           .router = "router.gate gate",
           .parameters = "expert_bias e_score_correction_bias",
           .shared_names = "shared_mlp shared_experts"}),
    known("granitemoeshared", "GraniteMoeSharedForCausalLM", kSoftmaxOverTopk,
          MOEBIUS_GQA "shared_mlp.input_linear shared_mlp.output_linear",
          {.router = "router.layer router gate", .shared_names = "shared_mlp"}),
    known("granitemoe_swa", "GraniteMoeSWAForCausalLM", kSoftmaxOverTopk,
          MOEBIUS_GQA "self_attn.sinks! shared_mlp.input_linear shared_mlp.output_linear",
          {.router = "router.layer router gate", .shared_names = "shared_mlp"}),
    known("granitemoehybrid", "GraniteMoeHybridForCausalLM", kSoftmaxOverTopk,
          MOEBIUS_NORMS MOEBIUS_SOME_GQA MOEBIUS_MAMBA
          "shared_mlp.input_linear shared_mlp.output_linear",
          {.router = "router.layer router gate",
           .shared_names = "shared_mlp",
           .strict_shapes = false}),
    known("aria", "AriaForConditionalGeneration AriaTextForCausalLM", kSoftmaxOverTopk, MOEBIUS_GQA,
          {.model_types = "aria aria_text",
           .shared = SharedRule::kCount,
           .router = "router",
           .shared_names = "shared_experts",
           .fused_transposed = true}),
    like_deepseek(
        "deepseek_ocr", "DeepseekOcr2ForConditionalGeneration UnlimitedOcrForConditionalGeneration",
        kDeepseekV2, MOEBIUS_GQA,
        {.model_types = "deepseek_ocr2 deepseek_ocr2_text unlimited_ocr unlimited_ocr_text"}),
    known("gemma4", "Gemma4ForConditionalGeneration Gemma4ForCausalLM", kGemma4,
          MOEBIUS_NORMS
          "self_attn.q_proj! self_attn.k_proj self_attn.v_proj self_attn.o_proj! " MOEBIUS_QK_NORM
          "self_attn.v_norm pre_feedforward_layernorm post_feedforward_layernorm "
          "pre_feedforward_layernorm_2 post_feedforward_layernorm_1 post_feedforward_layernorm_2 "
          "layer_scalar per_layer_input_gate per_layer_projection post_per_layer_input_norm",
          {.model_types = "gemma4 gemma4_text",
           .layers = LayerRule::kFlag,
           .router = "router.proj",
           .parameters = "router.scale router.per_expert_scale per_expert_scale",
           .top = "embed_tokens_per_layer per_layer_model_projection per_layer_projection_norm",
           .block_is_layer = true,
           .strict_shapes = false,
           .block_reason = "gemma4 normalizes and scales the router's input with tensors of its "
                           "layer; only its experts can be run"}),
    known("qwen3", "Qwen3ForCausalLM", kNone, MOEBIUS_NORMED_GQA),
    known("llama", "LlamaForCausalLM MistralForCausalLM Qwen2ForCausalLM", kNone, MOEBIUS_GQA,
          {.model_types = "llama mistral qwen2"}),
};

}  // namespace

std::span<const Family> families() {
  static const std::vector<Family> all = [] {
    std::vector<Family> both(std::begin(kFamilies), std::end(kFamilies));
    both.insert(both.end(), open_families().begin(), open_families().end());
    return both;
  }();
  return all;
}

bool in_list(std::string_view list, std::string_view word) {
  bool found = false;
  for_each_word(list, [&](std::string_view w, bool) { found = found || w == word; });
  return found && !word.empty();
}

const Family* find_family(std::string_view architecture, std::string_view model_type) {
  for (const Family& f : families())
    if (in_list(f.architectures, architecture)) return &f;
  for (const Family& f : families())
    if (in_list(f.model_types, model_type)) return &f;
  return nullptr;
}

const Family* family_by_key(std::string_view key) {
  for (const Family& f : families())
    if (f.key == key) return &f;
  return nullptr;
}

}  // namespace moebius
