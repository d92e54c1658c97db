// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/arch/arch.h"
#include "model/arch/layer_fields.h"

namespace moebius {
namespace {

constexpr Architecture kArchitectures[] = {
    {"qwen3_moe", "Qwen3-MoE", qwen3_spec},
    {"qwen3_next", "Qwen3-Next, Qwen3.5-MoE (text)", qwen3_next_spec},
    {"olmoe", "OLMoE", olmoe_spec},
    {"mixtral", "Mixtral", mixtral_spec},
    {"qwen2_moe", "Qwen2-MoE", qwen2_moe_spec},
    {"granitemoe", "Granite-MoE", granite_moe_spec},
    {"glm4_moe", "GLM-4-MoE", glm4_moe_spec},
    {"deepseek_v2", "DeepSeek-V2", deepseek_spec},
    {"deepseek_v3", "DeepSeek-V3, Kimi-K2", deepseek_spec},
    {"deepseek_v32", "DeepSeek-V3.2", sparse_deepseek_spec},
    {"glm_moe_dsa", "GLM-5", sparse_deepseek_spec},
    {"mistral4", "Mistral-4", mistral4_spec},
    {"mistral_large4", "Mistral-Large-4 (text)", mistral_large4_spec},
    {"gpt_oss", "GPT-OSS", gpt_oss_spec},
    {"minimax_m2", "MiniMax-M2", minimax_m2_spec},
    {"minimax_m3", "MiniMax-M3 (text)", minimax_m3_spec},
    {"llama4", "Llama-4 (text)", llama4_spec},
    {"phimoe", "Phi-3.5-MoE", phimoe_spec},
    {"qwen3_vl_moe", "Qwen3-VL-MoE (text)", qwen3_spec},
    {"qwen3_omni_moe", "Qwen3-Omni-MoE (text)", qwen3_spec},
    {"solar_open", "Solar-Open", plain_spec},
    {"dots1", "dots.llm1", dots1_spec},
    {"ernie4_5_moe", "ERNIE-4.5-MoE", ernie_moe_spec},
    {"ernie4_5_vl_moe", "ERNIE-4.5-VL (text)", ernie_vl_spec},
    {"exaone_moe", "K-EXAONE", exaone_moe_spec},
    {"hunyuan_v1_moe", "HunYuan-MoE", hunyuan_moe_spec},
    {"hy_v3", "Hy3", qwen3_spec},
    {"granitemoeshared", "Granite-MoE with a shared expert", granite_moe_spec},
    {"granitemoehybrid", "Granite-4 (Mamba-2)", granite_hybrid_spec},
    {"nemotron_h", "Nemotron-H", nemotron_h_spec},
    {"lfm2_moe", "LFM2-MoE", lfm2_moe_spec},
    {"kimi_linear", "Kimi-Linear", kimi_linear_spec},
    {"minimax", "MiniMax-Text-01", minimax_spec},
    {"aria", "Aria (text)", plain_spec},
    {"deepseek_ocr", "DeepSeek-OCR-2 (text)", plain_spec},
    {"gemma4", "Gemma-4 (text)", gemma4_spec},
    {"mimo_v2_flash", "MiMo-V2-Flash", mimo_spec},
    {"flex_olmo", "FlexOlmo", flex_olmo_spec},
    {"afmoe", "AFMoE (Trinity)", afmoe_spec},
    {"cohere2_moe", "Command A with experts", cohere2_moe_spec},
    {"laguna", "Laguna", laguna_spec},
    {"step3p7", "Step-3.5, Step-3.7 (text)", step3p7_spec},
    {"flint", "Flint", flint_spec},
    {"beam", "Beam", beam_spec},
    {"hy_v4", "Hy4", hy_v4_spec},
    {"deepseek_v4", "DeepSeek-V4", deepseek_v4_spec},
    {"glm5_next", "GLM-5.3-Flash (text)", glm5_next_spec},
    {"qwen4_exp", "Qwen4-Exp (text)", qwen4_exp_spec},
    {"longcat_flash", "LongCat-Flash", longcat_spec},
    {"bailing_hybrid", "Ling-3 (Bailing hybrid)", bailing_hybrid_spec},
    {"kolibri1", "Kolibri-1", kolibri1_spec},
    {"axk1", "A.X-K1", axk1_spec},
    {"axk2", "A.X-K2", axk2_spec},
    {"jamba", "Jamba (Mamba-1)", jamba_spec},
    {"dbrx", "DBRX", dbrx_spec},
    {"inkling", "Inkling (text)", inkling_spec},
    {"inkling_text", "Inkling, the text model alone", inkling_spec},
    {"mellum", "Mellum-2", mellum_spec},
    {"granitemoe_swa", "Granite-MoE with windows", granite_swa_spec},
    {"qwen3", "Qwen3 (dense)", qwen3_spec},
    {"llama", "Llama, Mistral, Qwen2 (dense)", llama_spec},
};

// Lists families of which only blocks, experts or names are known, with what they would need to
// run.
constexpr std::pair<std::string_view, std::string_view> kMissing[] = {
    {"diffusion_gemma", "decoding by diffusion"},
    {"doge", "a mask that values make, and experts found by product keys"},
    {"jetmoe", "attention whose queries are experts"},
    {"muse_spark", "experts behind a latent projection that end in norms, residuals with gates"},
    {"nllb_moe", "an encoder"},
    {"openai_privacy_filter", "attention in both directions"},
    {"switch_transformers", "an encoder"},
    {"zaya", "convolutions in attention, and routers that are networks with a state"},
};

// Lists the fields that single layers of a family may have of their own (layer_fields.h).
constexpr std::pair<std::string_view, std::string_view> kLayerFields[] = {
    {"gemma4", "head_dim num_key_value_heads"},
    {"step3p7", "num_attention_heads"},
};

std::string_view layer_fields_of(std::string_view family) {
  for (const auto& [key, names] : kLayerFields)
    if (key == family) return names;
  return "";
}

std::string missing_of(std::string_view family) {
  for (const auto& [key, what] : kMissing)
    if (key == family) return fmt::format(": it needs {}", what);
  return "";
}

// Checks rotations: features turn in pairs; if no layer rotates, heads may have any size.
void check_rotations(const DecoderSpec& s) {
  const bool rotates = std::any_of(s.layers.begin(), s.layers.end(), [](const LayerSpec& layer) {
    return std::any_of(layer.attention_rows.begin(), layer.attention_rows.end(),
                       [](const LayerOp& op) { return op.kind == RowOpKind::kRotate; });
  });
  const auto check = [](const RopeSpec& rope) {
    if (rope.dims % 2 != 0)
      fail("config.json: {} rotated features per head; expected an even number", rope.dims);
  };
  if (!rotates) return;
  check(s.rope);
  std::for_each(s.other_ropes.begin(), s.other_ropes.end(), check);
}

}  // namespace

std::span<const Architecture> architectures() { return kArchitectures; }

DecoderSpec decoder_spec(const ModelConfig& config) {
  for (const Architecture& a : kArchitectures) {
    if (a.family != config.family) continue;
    refuse_layer_fields(config, layer_fields_of(a.family));
    DecoderSpec spec = a.spec(config);
    check_rotations(spec);
    return spec;
  }
  fail_at({"unsupported", "", "", "", "architectures"},
          "architecture {} (model_type {}) cannot be run as a whole model{}; `moebius help "
          "architectures` lists those that can",
          printable(config.architecture), printable(config.model_type), missing_of(config.family));
}

}  // namespace moebius
