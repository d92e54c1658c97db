// SPDX-License-Identifier: Apache-2.0
// config.json as facts, whatever spelling the exporter used (transformers 4 and 5, multimodal
// wrappers). Sizes are checked.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "quant/moe_spec.h"

namespace moebius {

class ConfigFields;
struct Family;

// What the user says of a family that is not in the registry; empty: nothing.
struct Stated {
  std::string activation;  // of the experts, as configs spell it
  std::string layout;      // of gate and up in one tensor: one of kLayouts
};
inline constexpr std::string_view kLayouts[] = {"halves", "interleaved", "halves-transposed",
                                                "interleaved-transposed"};

// How the tensors of a layer that predicts further tokens are called.
struct PredictorNames {
  std::string stem;   // all of them: "mtp.", "model.layers.61."; empty: they are a model's
  std::string layer;  // those of the decoder layer among them: "mtp.layers.0."
};

struct ModelConfig {
  std::string architecture;  // "Qwen3MoeForCausalLM"
  std::string model_type;    // "qwen3_moe"
  std::string family;        // registry key, or "" when unknown
  std::string dtype;         // "bfloat16", ...
  int64_t layers = 0, hidden = 0, intermediate = 0,
          vocab = 0;        // intermediate: width of dense MLP layers
  int64_t wide_layers = 0;  // the last ones, whose dense MLPs are twice as wide (Gemma-4)
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t experts = 0, top_k = 0, moe_intermediate = 0, shared_experts = 0, shared_intermediate = 0;
  int64_t max_positions = 0;
  bool tie_embeddings = false,
       tie_stated = false;  // tie_stated: the file says so, it is not our default
  // MLA (DeepSeek): 0 when absent
  int64_t q_lora_rank = 0, kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0,
          v_head_dim = 0;
  std::vector<bool> moe_layer;  // [layers] which layers have experts
  std::vector<std::string>
      layer_types;  // [layers] the config's own words ("full_attention", "mamba", ...); empty: none
  std::string experts_reason;  // not empty: what is not known about what the experts compute
  // [layers] Step: by what routed and other experts clamp behind the activation, 0: nothing; empty: none
  std::vector<float> routed_limits, other_limits;
  std::optional<ActivationSpec>
      other_activation;  // of dense MLPs and shared experts, where it differs
  MoeSpec moe;           // common to all MoE layers; experts == 0 when the model is dense
  Json raw;   // whole config.json (architectures read further fields: rope, norms, multipliers)
  Json text;  // the object that holds the text model's fields (raw, or raw.text_config)

  Stated stated;
  PredictorNames predictor;  // of a checkpoint that Checkpoint::open_predictor() made

  int64_t dense_width(int layer) const {
    return layer >= 0 && layer >= layers - wide_layers ? 2 * intermediate : intermediate;
  }

  // Of a dense MLP.
  ActivationSpec dense_activation(int layer) const;

  static ModelConfig parse(Json config, const std::string& path, std::vector<std::string>& warnings,
                           const Stated& stated = {});
};

// `plain` or, where the layer has a limit, its clamped form.
ActivationSpec limited_activation(const ActivationSpec& plain, const std::vector<float>& limits,
                                  int layer);

// Reads the mixture-of-experts part of a config (moe_config.cpp); sizes must be filled in already.
void parse_moe(ModelConfig& config, const ConfigFields& fields, const Family* family,
               std::vector<std::string>& warnings);

}  // namespace moebius
