// SPDX-License-Identifier: Apache-2.0
// Holds families of which only the mixture-of-experts blocks are known: their other modules are
// listed by their names, without checks. tests/python/architectures.py compares every line with the
// library that the models come from.
#include "checkpoint/families.h"

namespace moebius {
namespace {

using enum RoutingRule;

// Makes a row; `rest` names what few families differ in. Without model types, a family has one, its
// key.
constexpr Family known_blocks(std::string_view key, std::string_view architectures,
                              RoutingRule routing, Family rest = {}) {
  rest.key = key;
  rest.architectures = architectures;
  rest.routing = routing;
  if (rest.model_types.empty()) rest.model_types = key;
  rest.router = kOpenRouters;
  rest.parameters = kOpenParameters;
  rest.shared_names = kOpenShared;
  rest.strict_shapes = false;
  rest.open = true;
  return rest;
}

constexpr std::string_view kOwnRouter =
    "its router is a network of its own; only its experts can be run";
constexpr std::string_view kNormInside =
    "its block ends in a norm that the file keeps outside; only its experts can be run";
constexpr std::string_view kCapacity =
    "its router has a capacity per expert; only its experts can be run";
constexpr std::string_view kLayerScalesRouter =
    "it normalizes and scales the router's input with tensors of its layer; only its experts can "
    "be run";

constexpr Family kOpen[] = {
    known_blocks("afmoe", "AfmoeForCausalLM", kSigmoidBias, {.correction_counts = true}),
    known_blocks("axk1", "AXK1ForCausalLM", kDeepseekV3, {.block_reason = kNormInside}),
    known_blocks("axk2", "AXK2ForCausalLM", kDeepseekV3),
    known_blocks("bailing_hybrid", "BailingHybridForCausalLM", kDeepseekV3),
    known_blocks("beam", "BeamForCausalLM", kDeepseekV3),
    known_blocks("cohere2_moe", "Cohere2MoeForCausalLM", kSelected),
    known_blocks("dbrx", "DbrxForCausalLM", kSoftmaxNorm, {.stacked_experts = true}),
    known_blocks("deepseek_v4", "DeepseekV4ForCausalLM", kSqrtSoftplus,
                 {.activation = ActivationRule::kSiluLimit, .router_bias_corrects = true}),
    known_blocks("diffusion_gemma", "DiffusionGemmaForBlockDiffusion", kGemma4,
                 {.model_types = "diffusion_gemma diffusion_gemma_text",
                  .block_is_layer = true,
                  .block_reason = kLayerScalesRouter}),
    known_blocks("doge", "DogeForCausalLM", kSoftmaxOverTopk,
                 {.experts_reason = "its experts are rows of two tables, found by product keys"}),
    known_blocks("ernie4_5_vl_moe", "Ernie4_5_VLMoeForConditionalGeneration", kSoftmaxBias,
                 {.model_types = "ernie4_5_vl_moe ernie4_5_moe_vl ernie4_5_vl_moe_text",
                  .router_transposed = true,
                  .image_experts = true,
                  .correction_counts = true}),
    known_blocks("flex_olmo", "FlexOlmoForCausalLM", kSoftmax),
    known_blocks("flint", "FlintForCausalLM", kSigmoid),
    known_blocks(
        "glm5_next", "Glm5NextForConditionalGeneration", kDeepseekV3,
        {.model_types = "glm5_next glm5_next_text", .activation = ActivationRule::kSiluLimit}),
    known_blocks("hy_v4", "HYV4ForCausalLM", kDeepseekV3,
                 {.activation = ActivationRule::kRoutedSiluLimit}),
    known_blocks("inkling", "InklingForConditionalGeneration", kSigmoidShared,
                 {.model_types = "inkling_mm_model",
                  .routed_shared = true,
                  .fused_order = FusedOrder::kInterleaved,
                  .router_bias_corrects = true}),
    known_blocks("inkling_text", "InklingForCausalLM", kSigmoidShared, {.routed_shared = true}),
    known_blocks("jamba", "JambaForCausalLM", kSoftmax),
    known_blocks("jetmoe", "JetMoeForCausalLM", kSoftmaxOverTopk,
                 {.block_reason = "its block ends with a bias; only its experts can be run"}),
    known_blocks("kimi_linear", "KimiLinearForCausalLM", kDeepseekV3),
    known_blocks("kolibri1", "Kolibri1ForCausalLM", kLogitBias),
    known_blocks("laguna", "LagunaForCausalLM", kSigmoidBias,
                 {.correction_counts = true, .renormalize_epsilon = 0}),
    known_blocks("lfm2_moe", "Lfm2MoeForCausalLM", kSigmoidBias, {.renormalize_epsilon = 1e-6f}),
    known_blocks("longcat_flash", "LongcatFlashForCausalLM", kZeroExperts, {.double_layers = true}),
    known_blocks("mellum", "MellumForCausalLM", kSoftmax),
    known_blocks("mimo_v2_flash", "MiMoV2FlashForCausalLM", kDeepseekV3),
    known_blocks("minimax", "MiniMaxForCausalLM", kSoftmaxAlways),
    known_blocks("minimax_m3", "MiniMaxM3SparseForConditionalGeneration MiniMaxM3VLForCausalLM",
                 kSigmoidBias,
                 {.model_types = "minimax_m3_vl minimax_m3_vl_text",
                  .activation = ActivationRule::kOai,
                  .renormalize_epsilon = 0}),
    known_blocks("mistral_large4", "MistralLarge4ForConditionalGeneration", kSoftmaxGroups,
                 {.model_types = "mistral_large4 mistral_large4_text", .block_is_layer = true}),
    known_blocks("muse_spark", "MuseSparkForConditionalGeneration", kSigmoidBias,
                 {.model_types = "muse_spark muse_spark_text",
                  .experts_reason = "its experts end in a norm, which cannot be run yet"}),
    known_blocks("nemotron_h", "NemotronHForCausalLM", kDeepseekV3, {.gated = false}),
    known_blocks(
        "nllb_moe", "NllbMoeForConditionalGeneration", kSoftmaxAlways,
        {.model_types = "nllb-moe", .gated = false, .top_k = 2, .block_reason = kCapacity}),
    known_blocks(
        "openai_privacy_filter", "OpenAIPrivacyFilterForTokenClassification", kSoftmaxOverTopk,
        {.fused_transposed = true, .expert_bias = true, .activation = ActivationRule::kOai}),
    known_blocks("qwen4_exp", "Qwen4ExpForConditionalGeneration Qwen4ExpForCausalLM",
                 kSoftmaxDefaultOn, {.model_types = "qwen4_exp qwen4_exp_text"}),
    known_blocks("step3p7", "Step3p7ForConditionalGeneration", kSigmoidBias,
                 {.model_types = "step3p7 step3p5",
                  .activation = ActivationRule::kStep,
                  .renormalize_epsilon = 0}),
    known_blocks("switch_transformers", "SwitchTransformersForConditionalGeneration", kSoftmax,
                 {.gated = false, .top_k = 1, .block_reason = kCapacity}),
    known_blocks("zaya", "ZayaForCausalLM", kSoftmaxBias, {.block_reason = kOwnRouter}),
};

}  // namespace

std::span<const Family> open_families() { return kOpen; }

}  // namespace moebius
