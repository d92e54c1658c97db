// SPDX-License-Identifier: Apache-2.0
// Lists the architectures that run as whole models, one file each. An architecture turns a config
// into a DecoderSpec.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"
#include "model/arch/decoder_spec.h"

namespace moebius {

struct Architecture {
  std::string_view family;  // key in the registry of families
  std::string_view title;   // name in messages: "Qwen3-MoE"
  DecoderSpec (*spec)(const ModelConfig&);
};

std::span<const Architecture> architectures();
// Returns the spec of a model. Throws Error that names the config's architecture if no architecture
// of the list matches.
DecoderSpec decoder_spec(const ModelConfig& config);
// Returns the spec of the layer that predicts the token after the next, as a model of one layer
// (predictor.cpp). Throws Error.
DecoderSpec predictor_spec(const ModelConfig& config);

// --- functions that the architecture files share (common.cpp) ---

ConfigFields fields_of(const ModelConfig& config);
// Returns a spec with sizes, norm epsilon, a rotation over `rotary_dims` features (0:
// partial_rotary_factor of the config, else the whole head) and one LayerSpec per layer.
DecoderSpec common_spec(const ModelConfig& config, size_t rotary_dims = 0, double rope_base = 0);
// Returns rope_parameters (transformers 5), rope_scaling (transformers 4), or an empty object if
// the config has neither; both may hold the type under two names. A model with several rotations
// has one object per type of layer.
const Json& rope_object(const ModelConfig& config, const std::string& layer_type = "");
// Returns the rotation that the config declares (for a type of layers, if types differ) in
// rope_parameters, or in rope_theta and rope_scaling. base: replaces the config's base unless 0.
RopeSpec rope_spec(const ModelConfig& config, size_t dims, const std::string& layer_type = "",
                   double base = 0);
// Returns YaRN's m(s, k): 1 for s <= 1, else 0.1 k ln s + 1.
double yarn_magnitude(double factor, double k);
// Tells which layers have a sliding window if a family's config.json does not say.
enum class WindowLayers : uint8_t {
  kAll,      // all layers, whatever layer_types says
  kTypes,    // the layers that layer_types names; all without it
  kFromMax,  // the layers that layer_types names; without it those from max_window_layers on
  // The layers that layer_types names; without it every other one below max_window_layers.
  kOddBelowMax,
};
struct WindowRule {
  WindowLayers layers = WindowLayers::kTypes;
  bool used = true;         // value of use_sliding_window if the config has none
  int64_t width = 0;        // value of sliding_window if the config has none; 0: no window
  int64_t max_layers = 28;  // value of max_window_layers if the config has none
};
void set_windows(const ModelConfig& config, DecoderSpec& spec, const WindowRule& rule = {});

// Sets the rotations of full attention and of windows if rope_parameters has an object for each;
// call after the windows are set. share: rotated part of a head where the objects do not say.
void set_typed_ropes(const ModelConfig& config, DecoderSpec& spec, double share = 1.0);

// --- changes of the row operations that most architectures share: common_spec sets norms before
// both branches and a rotation of q and k ---

// Names the norms of a layer's branches: of the rows that attention and the block after it read,
// and of their results; null: no norm.
struct BranchNorms {
  const char *attention_in = "input_layernorm", *attention_out = nullptr;
  const char *block_in = "post_attention_layernorm", *block_out = nullptr;
};
void set_branch_norms(DecoderSpec& spec, const BranchNorms& names);
// Adds norms of q and k before all other operations: of each head, or of a projection's whole
// result.
void norm_heads(DecoderSpec& spec, const char* q = "self_attn.q_norm",
                const char* k = "self_attn.k_norm");
void norm_projections(DecoderSpec& spec);
// Makes a join compute row = row * keep + branch * add.
void weigh_residual(LayerOps& join, float keep, float add);
// Makes rows streams: each branch reads a weighted sum of the streams, normalized, and its result
// is added to all of them by weights. `attention`, `block`: tensors as in row_op::stream_gates.
void set_streams(LayerSpec& layer, const char* attention, const char* block);
void set_rope(LayerSpec& layer, size_t rope);  // rope: as LayerOp::rope
void stop_rotation(LayerSpec& layer);

DecoderSpec afmoe_spec(const ModelConfig&);
DecoderSpec cohere2_moe_spec(const ModelConfig&);
DecoderSpec flex_olmo_spec(const ModelConfig&);
DecoderSpec granite_swa_spec(const ModelConfig&);
DecoderSpec step3p7_spec(const ModelConfig&);
DecoderSpec beam_spec(const ModelConfig&);
DecoderSpec longcat_spec(const ModelConfig&);
DecoderSpec bailing_hybrid_spec(const ModelConfig&);
DecoderSpec hy_v4_spec(const ModelConfig&);
DecoderSpec glm5_next_spec(const ModelConfig&);
DecoderSpec qwen4_exp_spec(const ModelConfig&);
DecoderSpec deepseek_v4_spec(const ModelConfig&);
DecoderSpec flint_spec(const ModelConfig&);
DecoderSpec kolibri1_spec(const ModelConfig&);
DecoderSpec axk1_spec(const ModelConfig&);
DecoderSpec axk2_spec(const ModelConfig&);
DecoderSpec jamba_spec(const ModelConfig&);
DecoderSpec dbrx_spec(const ModelConfig&);
DecoderSpec inkling_spec(const ModelConfig&);
DecoderSpec laguna_spec(const ModelConfig&);
DecoderSpec mellum_spec(const ModelConfig&);
DecoderSpec mimo_spec(const ModelConfig&);
DecoderSpec gemma4_spec(const ModelConfig&);
// Marks the layers that layer_types calls `recurrent` as recurrent; throws Error for a word that is
// in neither list.
void set_recurrent(const ModelConfig& config, DecoderSpec& spec, std::string_view recurrent,
                   std::string_view attention = "full_attention attention");

// Throws Error unless the activation is silu, the only one that follows convolutions.
void require_silu(const ModelConfig& config);
// Returns the sizes of linear attention with a decay per key feature (Kimi-Linear), from the config
// or its linear_attn_config.
DeltaSpec kimi_delta(const ModelConfig& config, int64_t heads);
// Decides which layers of sparse attention have an indexer and which use an earlier layer's choice:
// by indexer_types, index_topk_pattern, or every index_topk_freq-th. Throws Error if a layer has no
// earlier choice to use.
void set_indexers(const ModelConfig& config, DecoderSpec& spec);

DecoderSpec qwen3_spec(const ModelConfig&);
DecoderSpec qwen3_next_spec(const ModelConfig&);
DecoderSpec olmoe_spec(const ModelConfig&);
DecoderSpec mixtral_spec(const ModelConfig&);
DecoderSpec qwen2_moe_spec(const ModelConfig&);
DecoderSpec granite_moe_spec(const ModelConfig&);
DecoderSpec granite_hybrid_spec(const ModelConfig&);
DecoderSpec nemotron_h_spec(const ModelConfig&);
DecoderSpec lfm2_moe_spec(const ModelConfig&);
DecoderSpec kimi_linear_spec(const ModelConfig&);
DecoderSpec minimax_spec(const ModelConfig&);
DecoderSpec glm4_moe_spec(const ModelConfig&);
DecoderSpec deepseek_spec(const ModelConfig&);
DecoderSpec mistral4_spec(const ModelConfig&);
DecoderSpec mistral_large4_spec(const ModelConfig&);
DecoderSpec sparse_deepseek_spec(const ModelConfig&);
DecoderSpec gpt_oss_spec(const ModelConfig&);
DecoderSpec minimax_m3_spec(const ModelConfig&);
DecoderSpec minimax_m2_spec(const ModelConfig&);
DecoderSpec llama_spec(const ModelConfig&);
DecoderSpec llama4_spec(const ModelConfig&);
DecoderSpec phimoe_spec(const ModelConfig&);
DecoderSpec plain_spec(const ModelConfig&);
DecoderSpec dots1_spec(const ModelConfig&);
DecoderSpec ernie_moe_spec(const ModelConfig&);
DecoderSpec ernie_vl_spec(const ModelConfig&);
DecoderSpec exaone_moe_spec(const ModelConfig&);
DecoderSpec hunyuan_moe_spec(const ModelConfig&);

}  // namespace moebius
