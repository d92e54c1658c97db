// SPDX-License-Identifier: Apache-2.0
// Describes a decoder-only transformer as parameters: an architecture file fills them in and
// decoder.cpp runs them. There are no model names here.
#pragma once
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "model/arch/layer_op.h"
#include "nn/compressor.h"
#include "nn/delta_net.h"
#include "nn/gated_convolution.h"
#include "nn/indexer.h"
#include "nn/lightning_attention.h"
#include "nn/mamba1.h"
#include "nn/mamba2.h"
#include "nn/ngram_hash.h"
#include "nn/norm.h"
#include "nn/rope.h"

namespace moebius {

struct HeadSizes {
  size_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
};

// Describes a dense MLP beside the experts. Experts and router then read rows of their own; or,
// without `inputs`, they read the MLP's rows, and the experts' result joins the next layer
// (kLater).
struct BesideSpec {
  LayerOps inputs;  // computes kRouterInput and kExpertsInput from kHidden
  LayerOps join;    // adds kDense to kBranch
};

struct LayerSpec {
  // false: the layer has no attention or recurrence, only an MLP or experts.
  bool attends = true;
  bool mixes = true;       // false: the layer has no MLP or experts
  bool recurrent = false;  // the layer runs DecoderSpec::recurrent in place of attention
  HeadSizes sizes;         // sizes that differ from the model's; 0: as the model
  size_t kv_from = 0;  // keys and values are those of the layer this far before; 0: the layer's own
  bool values_are_keys = false;  // values are k_proj's result before its norm and rotation
  bool no_rotated_part = false;  // latent attention in which no part of a key is rotated
  // true: the layer's indexer chooses keys for sparse attention; false: the layer uses the choice
  // of an earlier one.
  bool indexes = false;
  bool sinks = false;  // each head has an extra logit without a value
  size_t window = 0, chunk = 0;
  size_t first_key = 0;  // rows at or after this position do not see keys before it
  // Tokens per compressed key, which rows see beside the window's keys; 0: no compressed keys.
  size_t ratio = 0;
  // Number of distances that have a logit of their own; used with DecoderSpec::relative.
  size_t relative_extent = 0;
  float attention_scale = 0;  // factor of scores; 0: the model's
  // Row operations in the order in which they run.
  LayerOps enter_attention;  // computes kInput from kHidden
  LayerOps attention_rows;   // changes kQuery, kKey and kValue after their projections
  LayerOps attended;         // changes kAttended after attention; may read kGate
  LayerOps join_attention;   // adds kBranch to kHidden
  // Computes kInput from kHidden; empty: the block reads attention's input.
  LayerOps enter_block;
  LayerOps join_block;   // reads kLater if the layer before has experts for this one
  LayerOps latent_rows;  // changes kLatent
  // Names of two projections with few features between them that gate a branch's input by itself;
  // null: no gate.
  const char *attention_row_gate = nullptr, *block_row_gate = nullptr;
  // Names of the mixers that mix normalized streams to a branch's input; used if StreamSpec::rank
  // is not 0.
  const char *attention_mixer = nullptr, *block_mixer = nullptr;
  // Index of the table whose rows are added to the streams; used with DecoderSpec::ngrams.
  std::optional<size_t> ngrams;
  std::optional<BesideSpec> beside;
};

// Names the modules of a layer's attention, or of the layer that replaces it.
struct LayerNames {
  // output: alternative names, of which the first that exists is used.
  std::string_view attention = "self_attn", output = "o_proj";
  std::string_view recurrent = "linear_attn";
  using Others = std::span<const std::pair<std::string_view, std::string_view>>;
  Others others = {};  // other names that the family has for members of attention
  // Name of q_proj, k_proj and v_proj stored as one matrix; empty: they are separate.
  std::string_view fused_qkv = {};
};

// Describes the projection whose result gates attention's result.
struct GateSpec {
  const char* projection = nullptr;  // null: the query projection gives [q | gate] per head
  bool per_head = false;             // true: one gate per head; false: one per feature
};

// Describes attention with one kv head whose keys are also its values. Queries are computed from a
// latent; results are rotated back, and groups of heads have output projections of their own before
// a common one.
struct SharedKeySpec {
  size_t groups = 1, rank = 0;  // rank: outputs of each group's projection
};

// Describes logits by distance: a projection of the rows gives `dims` numbers per head, which a
// tensor [dims, relative_extent] turns into logits.
struct RelativeSpec {
  const char *projection, *table;
  size_t dims;
};

// Names the tensors of short convolutions whose results are added to keys and values, and to the
// results of attention and block.
struct ConvolutionSpec {
  const char *keys, *values, *attention, *block;
  size_t width;
};

// Describes rows of several streams (hyper-connections, nn/streams.h).
struct StreamSpec {
  static constexpr size_t kMost = 16;
  size_t count = 1;
  float epsilon = 1e-6f, out_epsilon = 0, magnitude = 2;
  // Iterations that normalize the mixing weights; 0: streams are not mixed with each other.
  size_t rounds = 0;
  // Alternative prefixes of the tensors ("fn", ...) that weigh the streams before the final norm;
  // null: the streams' mean is used.
  const char* head = nullptr;
  // Features between the two projections of a mixer, which normalizes streams and mixes them by
  // gates. If `head` names a mixer, it also replaces the final norm. 0: there are no mixers.
  size_t rank = 0;

  size_t gates() const { return StreamGates::outputs(count, true, rounds); }
};

using RecurrentSpec = std::variant<std::monostate, DeltaSpec, Mamba1Spec, Mamba2Spec,
                                   GatedConvolutionSpec, LightningSpec>;

struct DecoderSpec {
  LayerNames names;
  size_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  float attention_scale = 0;              // 0: 1 / sqrt(key width)
  const char* sinks = "self_attn.sinks";  // for layers that have sinks
  std::optional<GateSpec> gates;          // makes the rows kGate
  RecurrentSpec recurrent;                // for layers that replace attention
  std::optional<RelativeSpec> relative;   // makes the rows kRelative
  std::optional<ConvolutionSpec> convolutions;
  std::optional<NGramSpec> ngrams;       // for layers that name a table
  const char* embedding_norm = nullptr;  // end of the name of the norm of token rows; null: no norm
  // Sizes of latent attention (MLA); kv_lora 0: the model has none.
  size_t q_lora = 0, kv_lora = 0, nope_dim = 0, rope_dim = 0;
  // true: queries are computed from [norm of their latent | the latent itself]
  bool raw_query_latent = false;
  float latent_norm_epsilon = 1e-6f;
  IndexerSpec indexer;      // sparse attention if top_k > 0
  size_t indexer_rope = 0;  // numbered like LayerOp::rope
  float indexer_epsilon = 1e-6f;
  bool indexer_rotates_last = false;  // rotates the last features of its heads instead of the first
  // Members of attention for pooled keys: weights of their gates, [head_dim, hidden], and a bias.
  // Null: keys are averaged, then normalized and rotated.
  const char *pool_gates = nullptr, *pool_bias = nullptr;
  std::optional<SharedKeySpec> shared_key;
  // Members of attention; null: none. The indexer's queries are then computed from the normalized
  // rows instead of their latent, and scaled by position and head (row_op::scale_by_position).
  const char *indexer_input_norm = nullptr, *indexer_scales = nullptr;
  StreamSpec streams;
  RopeSpec rope;
  std::vector<RopeSpec> other_ropes;
  // End of the name of the tensor with logarithms of factors for all frequencies; null: none.
  const char* rope_factors = nullptr;
  // true: the operation lists cover everything around router and experts in the family's blocks
  bool whole_blocks = false;
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 1e-6f;
  float embedding_multiplier = 1, logits_divisor = 1;
  bool round_embedding_multiplier = false;  // rounds it to the activation type
  // Limits logits to cap * tanh(logits / cap); 0: no limit.
  float logits_cap = 0;
  std::vector<LayerSpec> layers;

  bool latent() const { return kv_lora > 0; }
  HeadSizes sizes(size_t layer) const {
    const HeadSizes& own = layers[layer].sizes;
    return {own.heads != 0 ? own.heads : heads, own.kv_heads != 0 ? own.kv_heads : kv_heads,
            own.head_dim != 0 ? own.head_dim : head_dim,
            own.value_dim != 0 ? own.value_dim : value_dim};
  }
  size_t key_dim(size_t layer) const {
    return latent() ? nope_dim + rope_dim : sizes(layer).head_dim;
  }
  // Returns the width of the part of a latent layer's keys that is rotated and shared by all heads
  // (rotated_dim), and of each head's own part (latent_key_dim).
  size_t rotated_dim(size_t layer) const { return layers[layer].no_rotated_part ? 0 : rope_dim; }
  size_t latent_key_dim(size_t layer) const { return key_dim(layer) - rotated_dim(layer); }
};

// Returns whether a layer's rows see only keys that an indexer chose, its own or an earlier
// layer's.
inline bool is_sparse(const DecoderSpec& s, size_t layer) {
  const LayerSpec& l = s.layers[layer];
  const bool of_layer = s.indexer.by_head || (s.indexer.ratio != 0 && !s.indexer.pooled);
  return s.indexer.top_k > 0 && l.attends && !l.recurrent && (!of_layer || l.indexes);
}
inline bool takes_choice(const DecoderSpec& s, size_t layer) {
  return is_sparse(s, layer) && !s.layers[layer].indexes;
}
// Returns the layer whose indexer chooses for this one: the last one up to it that has an indexer.
inline size_t choice_from(const DecoderSpec& s, size_t layer) {
  while (layer > 0 && !s.layers[layer].indexes) --layer;
  return layer;
}

// Returns whether the layer adds what the experts of the layer before gave for it.
inline bool joins_later(const LayerSpec& layer) {
  return std::any_of(layer.join_block.begin(), layer.join_block.end(),
                     [](const LayerOp& op) { return op.x == LayerRows::kLater; });
}

// Returns the specs of a layer's compressed keys (compressor_of) and of its indexer's
// (index_compressor_of).
inline CompressorSpec compressor_of(const DecoderSpec& s, size_t layer) {
  return {s.head_dim, s.layers[layer].ratio, s.layers[layer].indexes};
}
inline CompressorSpec index_compressor_of(const DecoderSpec& s) {
  return {s.indexer.head_dim, s.indexer.ratio, !s.indexer.pooled,
          !s.indexer.pooled || s.pool_gates != nullptr};
}

// Returns the full name of a member of attention, such as "self_attn.q_proj".
inline std::string attention_name(const DecoderSpec& spec, std::string_view member) {
  for (const auto& [ours, theirs] : spec.names.others)
    if (ours == member) member = theirs;
  return std::string(spec.names.attention).append(".").append(member);
}

}  // namespace moebius
