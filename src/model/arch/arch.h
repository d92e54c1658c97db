// SPDX-License-Identifier: Apache-2.0
// Lists the architectures that run as whole models, one file each. An architecture turns a config
// into a DecoderSpec.
#pragma once
#include <functional>
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
// Returns the fields of an object inside the config; there may be none.
ConfigFields nested_fields(const ModelConfig& config, const char* name);
// Returns a number of at least 1.
size_t size_of(const ConfigFields& fields, ConfigFields::Names names, int64_t fallback,
               int64_t most = 1 << 30);
float real_of(const ConfigFields& fields, ConfigFields::Names names, double fallback);
// Returns which layers layer_types calls `word`, and what `otherwise` says of those that it does not
// name.
std::vector<bool> layers_called(const ModelConfig& config, const char* word,
                                const std::function<bool(size_t layer)>& otherwise);
// Throws Error if one of these fields is true.
void refuse_biases(const ConfigFields& fields, ConfigFields::Names names = {"attention_bias"});

// Calls f(mixer) for all layers that have attention.
template <class F>
void each_attention(DecoderSpec& spec, F f) {
  for (LayerSpec& layer : spec.layers)
    if (KeyMixer* keys = layer.keys()) f(*keys);
}

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
// Sets a window of some layers.
void set_windows(DecoderSpec& spec, const std::vector<bool>& layers, size_t width);
// Lets only layers with a window rotate.
void rotate_in_windows(DecoderSpec& spec);

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
void set_rope(KeyMixer& mixer, size_t rope);  // rope: as LayerOp::rope
void stop_rotation(KeyMixer& mixer);
void stop_rotation(DecoderSpec& spec);  // in all layers
// Gates what attention gives; gates: null makes them inside the query projection.
void set_gates(DecoderSpec& spec, const GateSpec& gates, RowOpKind kind = RowOpKind::kGateSigmoid);

// Makes the layers that layer_types calls one of the words `recurrent` recurrent, or, without a
// list, those that `otherwise` tells. Throws Error for a word that is in neither list, and for a
// missing list if `otherwise` is null.
void set_recurrent(const ModelConfig& config, DecoderSpec& spec, const StateMixer& mixer,
                   std::string_view recurrent, const std::function<bool(size_t layer)>& otherwise,
                   std::string_view attention = "full_attention attention");
// Throws Error unless the activation is silu, the only one that follows convolutions.
void require_silu(const ModelConfig& config, const char* behind = "behind convolutions");
// Returns the sizes of linear attention with a decay per key feature (Kimi-Linear), from the config
// or its linear_attn_config.
DeltaSpec kimi_delta(const ModelConfig& config, int64_t heads);

// Adds Llama-4's growing temperature on the queries, by positions of the unscaled model, where the
// rotation's parameters have one.
void set_temperature(const ModelConfig& config, DecoderSpec& spec);
// Returns the indexer of a config with index_n_heads, index_head_dim and index_topk; `heads`: the
// default of the first. Throws Error if its heads are narrower than the `rotated` features.
IndexerSpec indexer_of(const ConfigFields& fields, int64_t heads, size_t rotated,
                       int64_t most = 1 << 30);
// Gives every layer of attention a choice of keys, made by its own indexer.
void set_choices(DecoderSpec& spec, const ChoiceSpec& choice);
// Decides which layers of sparse attention have an indexer and which use an earlier layer's choice:
// by indexer_types, index_topk_pattern, or every index_topk_freq-th. Throws Error if a layer has no
// earlier choice to use.
void set_indexers(const ModelConfig& config, DecoderSpec& spec);
// Sets the number of streams, from the field `name`. Throws Error for less than 2 or too many.
void set_stream_count(const ConfigFields& fields, DecoderSpec& spec, const char* name = "hc_mult");

// --- architectures from which others are made ---

DecoderSpec deepseek_spec(const ModelConfig&);
DecoderSpec sparse_deepseek_spec(const ModelConfig&);
DecoderSpec qwen3_next_spec(const ModelConfig&);

}  // namespace moebius
