// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <utility>

#include "base/error.h"
#include "model/arch/arch.h"
#include "model/arch/layer_fields.h"

namespace moebius {

// Lists the architectures that run, a line each: the key of the family, the name in messages, and
// the function that describes it.
#define MOEBIUS_ARCHITECTURES(X)                                              \
  X("qwen3_moe", "Qwen3-MoE", qwen3_spec)                                     \
  X("qwen3_next", "Qwen3-Next, Qwen3.5-MoE (text)", qwen3_next_spec)          \
  X("olmoe", "OLMoE", olmoe_spec)                                             \
  X("mixtral", "Mixtral", mixtral_spec)                                       \
  X("qwen2_moe", "Qwen2-MoE", qwen2_moe_spec)                                 \
  X("granitemoe", "Granite-MoE", granite_moe_spec)                            \
  X("glm4_moe", "GLM-4-MoE", glm4_moe_spec)                                   \
  X("deepseek_v2", "DeepSeek-V2", deepseek_spec)                              \
  X("deepseek_v3", "DeepSeek-V3, Kimi-K2", deepseek_spec)                     \
  X("deepseek_v32", "DeepSeek-V3.2", sparse_deepseek_spec)                    \
  X("glm_moe_dsa", "GLM-5", sparse_deepseek_spec)                             \
  X("mistral4", "Mistral-4", mistral4_spec)                                   \
  X("mistral_large4", "Mistral-Large-4 (text)", mistral_large4_spec)          \
  X("gpt_oss", "GPT-OSS", gpt_oss_spec)                                       \
  X("minimax_m2", "MiniMax-M2", minimax_m2_spec)                              \
  X("minimax_m3", "MiniMax-M3 (text)", minimax_m3_spec)                       \
  X("llama4", "Llama-4 (text)", llama4_spec)                                  \
  X("phimoe", "Phi-3.5-MoE", phimoe_spec)                                     \
  X("qwen3_vl_moe", "Qwen3-VL-MoE (text)", qwen3_spec)                        \
  X("qwen3_omni_moe", "Qwen3-Omni-MoE (text)", qwen3_spec)                    \
  X("solar_open", "Solar-Open", plain_spec)                                   \
  X("dots1", "dots.llm1", dots1_spec)                                         \
  X("ernie4_5_moe", "ERNIE-4.5-MoE", ernie_moe_spec)                          \
  X("ernie4_5_vl_moe", "ERNIE-4.5-VL (text)", ernie_vl_spec)                  \
  X("exaone_moe", "K-EXAONE", exaone_moe_spec)                                \
  X("hunyuan_v1_moe", "HunYuan-MoE", hunyuan_moe_spec)                        \
  X("hy_v3", "Hy3", qwen3_spec)                                               \
  X("granitemoeshared", "Granite-MoE with a shared expert", granite_moe_spec) \
  X("granitemoehybrid", "Granite-4 (Mamba-2)", granite_hybrid_spec)           \
  X("nemotron_h", "Nemotron-H", nemotron_h_spec)                              \
  X("lfm2_moe", "LFM2-MoE", lfm2_moe_spec)                                    \
  X("kimi_linear", "Kimi-Linear", kimi_linear_spec)                           \
  X("minimax", "MiniMax-Text-01", minimax_spec)                               \
  X("aria", "Aria (text)", plain_spec)                                        \
  X("deepseek_ocr", "DeepSeek-OCR-2 (text)", plain_spec)                      \
  X("gemma4", "Gemma-4 (text)", gemma4_spec)                                  \
  X("mimo_v2_flash", "MiMo-V2-Flash", mimo_spec)                              \
  X("flex_olmo", "FlexOlmo", flex_olmo_spec)                                  \
  X("afmoe", "AFMoE (Trinity)", afmoe_spec)                                   \
  X("cohere2_moe", "Command A with experts", cohere2_moe_spec)                \
  X("laguna", "Laguna", laguna_spec)                                          \
  X("step3p7", "Step-3.5, Step-3.7 (text)", step3p7_spec)                     \
  X("flint", "Flint", flint_spec)                                             \
  X("beam", "Beam", beam_spec)                                                \
  X("hy_v4", "Hy4", hy_v4_spec)                                               \
  X("deepseek_v4", "DeepSeek-V4", deepseek_v4_spec)                           \
  X("glm5_next", "GLM-5.3-Flash (text)", glm5_next_spec)                      \
  X("qwen4_exp", "Qwen4-Exp (text)", qwen4_exp_spec)                          \
  X("longcat_flash", "LongCat-Flash", longcat_spec)                           \
  X("bailing_hybrid", "Ling-3 (Bailing hybrid)", bailing_hybrid_spec)         \
  X("kolibri1", "Kolibri-1", kolibri1_spec)                                   \
  X("axk1", "A.X-K1", axk1_spec)                                              \
  X("axk2", "A.X-K2", axk2_spec)                                              \
  X("jamba", "Jamba (Mamba-1)", jamba_spec)                                   \
  X("dbrx", "DBRX", dbrx_spec)                                                \
  X("inkling", "Inkling (text)", inkling_spec)                                \
  X("inkling_text", "Inkling, the text model alone", inkling_spec)            \
  X("mellum", "Mellum-2", mellum_spec)                                        \
  X("granitemoe_swa", "Granite-MoE with windows", granite_swa_spec)           \
  X("qwen3", "Qwen3 (dense)", qwen3_spec)                                     \
  X("llama", "Llama, Mistral, Qwen2 (dense)", llama_spec)

#define MOEBIUS_DECLARED(family, title, spec) DecoderSpec spec(const ModelConfig&);
MOEBIUS_ARCHITECTURES(MOEBIUS_DECLARED)

namespace {

#define MOEBIUS_LISTED(family, title, spec) {family, title, spec},
constexpr Architecture kArchitectures[] = {MOEBIUS_ARCHITECTURES(MOEBIUS_LISTED)};

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
    const KeyMixer* m = layer.keys();
    return m != nullptr && std::any_of(m->rows.begin(), m->rows.end(), [](const LayerOp& op) {
             return op.kind == RowOpKind::kRotate;
           });
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
