// SPDX-License-Identifier: Apache-2.0
// The architectures that run as whole models: one file each, one list. An architecture turns a
// config into a DecoderSpec.
#pragma once
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/config_fields.h"
#include "checkpoint/model_config.h"
#include "model/arch/decoder_spec.h"

namespace moebius {

struct Architecture {
  std::string_view family;  // key of the family registry
  std::string_view title;   // for people: "Qwen3-MoE"
  DecoderSpec (*spec)(const ModelConfig&);
};

std::span<const Architecture> architectures();
// Throws Error naming the architecture where it is none of these.
DecoderSpec decoder_spec(const ModelConfig& config);
// Of the layer that predicts the token after the next, as a model of one layer (predictor.cpp).
DecoderSpec predictor_spec(const ModelConfig& config);

// --- shared by the architecture files (common.cpp) ---

ConfigFields fields_of(const ModelConfig& config);
// Sizes, norm epsilon, rotation over `rotary_dims` (0: partial_rotary_factor of the config, else
// the whole head), one LayerSpec per layer.
DecoderSpec common_spec(const ModelConfig& config, size_t rotary_dims = 0, double rope_base = 0);
// rope_parameters (transformers 5), rope_scaling (transformers 4), or what the family has without either;
// both may hold the type under two names. A model with several rotations has one object per type of layer.
const Json& rope_object(const ModelConfig& config, const std::string& layer_type = "");
// Rotation as the config declares it (of one type of layers, where they differ): rope_parameters, or
// rope_theta and rope_scaling. `base`: given by the caller; 0: not.
RopeSpec rope_spec(const ModelConfig& config, size_t dims, const std::string& layer_type = "",
                   double base = 0);
// m(s, k) of YaRN: 1 for s <= 1, else 0.1 k ln s + 1.
double yarn_magnitude(double factor, double k);
// What a family's configuration means where config.json is silent.
enum class WindowLayers : uint8_t {
  kAll,          // every layer, whatever layer_types says
  kTypes,        // layer_types, else every layer
  kFromMax,      // layer_types, else from max_window_layers on
  kOddBelowMax,  // layer_types, else every other one below max_window_layers
};
struct WindowRule {
  WindowLayers layers = WindowLayers::kTypes;
  bool used = true;         // use_sliding_window
  int64_t width = 0;        // sliding_window; 0: none
  int64_t max_layers = 28;  // max_window_layers
};
void set_windows(const ModelConfig& config, DecoderSpec& spec, const WindowRule& rule = {});

// Rotations of full attention and of windows, where rope_parameters has one object for each; after
// the windows are set. `share` of a head is rotated where they do not say it.
void set_typed_ropes(const ModelConfig& config, DecoderSpec& spec, double share = 1.0);

// --- the lists of row operations that most architectures share: common_spec has norms before both
// branches and a rotation of q and k; these change them ---

// Norms of what attention and the block behind it read, and of what they give; null: none.
struct BranchNorms {
  const char *attention_in = "input_layernorm", *attention_out = nullptr;
  const char *block_in = "post_attention_layernorm", *block_out = nullptr;
};
void set_branch_norms(DecoderSpec& spec, const BranchNorms& names);
// q and k are normalized before all else: each head, or the whole of a projection.
void norm_heads(DecoderSpec& spec, const char* q = "self_attn.q_norm",
                const char* k = "self_attn.k_norm");
void norm_projections(DecoderSpec& spec);
// row = row * keep + branch * add.
void weigh_residual(LayerOps& join, float keep, float add);
// Rows are streams: what a branch reads is weighed out of them and then normalized, what it gives joins
// them. `attention`, `block`: as row_op::stream_gates.
void set_streams(LayerSpec& layer, const char* attention, const char* block);
void set_rope(LayerSpec& layer, size_t rope);  // as LayerOp::rope
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
// Marks the layers that layer_types gives one of the words `recurrent`; throws Error for a word that
// is not among `attention` either.
void set_recurrent(const ModelConfig& config, DecoderSpec& spec, std::string_view recurrent,
                   std::string_view attention = "full_attention attention");

// Layers that convolve have silu alone behind it.
void require_silu(const ModelConfig& config);
// Linear attention with a decay per key feature (Kimi-Linear): its sizes, by names of the config or of
// its linear_attn_config.
DeltaSpec kimi_delta(const ModelConfig& config, int64_t heads);
// Which layers of sparse attention have an indexer, and which take the choice of one before: indexer_types,
// index_topk_pattern, or every index_topk_freq-th. Throws Error where there is none to take.
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
