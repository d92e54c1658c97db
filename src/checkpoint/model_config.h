// SPDX-License-Identifier: Apache-2.0
// Holds the facts of config.json that the program uses, whatever spelling the exporter used
// (transformers 4 and 5, multimodal wrappers). Sizes are range-checked.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/json.h"
#include "quant/moe_spec.h"

namespace moebius {

class ConfigFields;
struct Family;

// Prefixes of the tensors of the layer that predicts the token after the next.
struct PredictorNames {
  // Prefix of all tensors of the predictor: "mtp.", "model.layers.61."; empty: this config is the
  // main model's.
  std::string stem;
  std::string layer;  // prefix of its decoder layer: "mtp.layers.0."
};

struct ModelConfig {
  std::string architecture;  // first entry of `architectures`: "Qwen3MoeForCausalLM"
  std::string model_type;    // member model_type: "qwen3_moe"
  std::string family;        // key in the registry; "" if unknown
  std::string dtype;         // type of numbers in the config: "bfloat16", ...
  // intermediate: width of dense MLP layers.
  int64_t layers = 0, hidden = 0, intermediate = 0, vocab = 0;
  int64_t wide_layers = 0;  // the last so many layers have dense MLPs of twice the width (Gemma-4)
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  int64_t experts = 0, top_k = 0, moe_intermediate = 0, shared_experts = 0, shared_intermediate = 0;
  int64_t max_positions = 0;
  // tie_stated: true: the file states tie_word_embeddings; false: it is a default.
  bool tie_embeddings = false, tie_stated = false;
  // Multi-head latent attention (DeepSeek); 0: the model has none.
  int64_t q_lora_rank = 0, kv_lora_rank = 0, qk_nope_head_dim = 0, qk_rope_head_dim = 0,
          v_head_dim = 0;
  std::vector<bool> moe_layer;  // [layers] true: the layer has experts
  // [layers] the config's own words ("full_attention", "mamba", ...); empty: none.
  std::vector<std::string> layer_types;
  std::string experts_reason;  // not empty: why the function of the experts is unknown
  // [layers] (Step) bounds of the clamp after the activation in routed experts and in other MLPs,
  // 0: none; empty: the family has none
  std::vector<float> routed_limits, other_limits;
  // Activation of dense MLPs and shared experts, if it differs.
  std::optional<ActivationSpec> other_activation;
  MoeSpec moe;  // facts common to all MoE layers; experts == 0 in a dense model
  // The whole config.json; architectures read more fields from it (rope, norms, multipliers).
  Json raw;
  Json text;  // the object with the text model's fields: raw, or raw.text_config

  // Names of the predictor's tensors, set by Checkpoint::open_predictor().
  PredictorNames predictor;

  int64_t dense_width(int layer) const {
    return layer >= 0 && layer >= layers - wide_layers ? 2 * intermediate : intermediate;
  }

  // Returns the activation of the dense MLP in a layer.
  ActivationSpec dense_activation(int layer) const;

  static ModelConfig parse(Json config, const std::string& path,
                           std::vector<std::string>& warnings);
};

// Returns `plain`, or its clamped form if the layer has a limit.
ActivationSpec limited_activation(const ActivationSpec& plain, const std::vector<float>& limits,
                                  int layer);

// Reads the mixture-of-experts part of a config into config.moe (moe_config.cpp); sizes must be set
// already.
void parse_moe(ModelConfig& config, const ConfigFields& fields, const Family* family,
               std::vector<std::string>& warnings);

}  // namespace moebius
