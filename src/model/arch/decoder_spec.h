// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer as parameters: what an architecture file fills in and decoder.cpp
// runs. No model names here.
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

// A dense MLP beside the experts, which read rows of their own, as their router does; or what the MLP
// reads (no inputs), and give what joins the next layer (kLater).
struct BesideSpec {
  LayerOps inputs;  // kHidden -> kRouterInput, kExpertsInput
  LayerOps join;    // kDense joins kBranch
};

struct LayerSpec {
  bool attends = true;     // false: the layer is an MLP or experts alone
  bool mixes = true;       // false: it is attention or a recurrent layer alone
  bool recurrent = false;  // DecoderSpec::recurrent in place of attention
  HeadSizes sizes;         // where they differ from the model's; 0: they do not
  size_t kv_from = 0;  // keys and values are those of a layer so many before this one; 0: its own
  bool values_are_keys = false;  // values are what k_proj gives, before its norm and rotation
  bool no_rotated_part = false;  // latent attention whose keys are all latent
  bool indexes = false;  // sparse attention: chooses keys; else those of the layer before are taken
  bool sinks = false;    // an extra logit per head without a value
  size_t window = 0, chunk = 0;
  size_t first_key = 0;  // keys before this position are seen by no row behind it
  size_t ratio =
      0;  // tokens of a compressed key, which rows see beside those of the window; 0: none
  size_t relative_extent = 0;  // distances with a logit of their own; with DecoderSpec::relative
  float attention_scale = 0;   // 0: the model's
  // Row operations, in order.
  LayerOps enter_attention;  // kHidden -> kInput
  LayerOps attention_rows;   // kQuery, kKey and kValue, behind their projections
  LayerOps attended;         // kAttended with kGate, behind attention
  LayerOps join_attention;   // kBranch joins kHidden
  LayerOps enter_block;      // kHidden -> kInput; none: the block reads what attention reads
  LayerOps join_block;       // with kLater, where the layer before has experts for this one
  LayerOps latent_rows;      // kLatent
  // What a branch reads is gated by itself, through two projections with few features between them:
  // where they hang; null: it is not.
  const char *attention_row_gate = nullptr, *block_row_gate = nullptr;
  // What a branch reads is mixed of normalized streams, where StreamSpec::rank is not 0: where the mixer
  // hangs.
  const char *attention_mixer = nullptr, *block_mixer = nullptr;
  std::optional<size_t>
      ngrams;  // streams are joined by rows of this table, with DecoderSpec::ngrams
  std::optional<BesideSpec> beside;
};

// Where a layer keeps attention and what stands in its place.
struct LayerNames {
  std::string_view attention = "self_attn", output = "o_proj";  // output: words, the first there is
  std::string_view recurrent = "linear_attn";
  using Others = std::span<const std::pair<std::string_view, std::string_view>>;
  Others others = {};               // members of attention that the family calls otherwise
  std::string_view fused_qkv = {};  // q_proj, k_proj and v_proj in one; empty: they are apart
};

// A projection whose result gates what attention gives.
struct GateSpec {
  const char* projection = nullptr;  // null: that of q gives [q | gate] per head
  bool per_head = false;             // one gate for each head; else for each feature
};

// Attention whose one kv head has keys that are their own values. Queries come of a latent; results are
// turned back, and groups of heads have output projections of their own, in front of a common one.
struct SharedKeySpec {
  size_t groups = 1, rank = 0;  // outputs of each
};

// Logits by distance: a projection of the rows that gives `dims` numbers for each head, and a tensor
// [dims, relative_extent].
struct RelativeSpec {
  const char *projection, *table;
  size_t dims;
};

// Short convolutions that are added to keys and values, and to what attention and the block give: their
// tensors in a layer.
struct ConvolutionSpec {
  const char *keys, *values, *attention, *block;
  size_t width;
};

// Rows of several streams (hyper-connections, nn/streams.h).
struct StreamSpec {
  static constexpr size_t kMost = 16;
  size_t count = 1;
  float epsilon = 1e-6f, out_epsilon = 0, magnitude = 2;
  size_t rounds = 0;  // 0: streams are not mixed
  // Tensors before the final norm: words before "fn" ..., the first there is; null: the streams' mean.
  const char* head = nullptr;
  // Streams are normalized, and mixed by gates of two projections with so many features between them; also
  // in place of the final norm, where `head` ends the mixer's name. 0: they are not.
  size_t rank = 0;

  size_t gates() const { return StreamGates::outputs(count, true, rounds); }
};

using RecurrentSpec = std::variant<std::monostate, DeltaSpec, Mamba1Spec, Mamba2Spec,
                                   GatedConvolutionSpec, LightningSpec>;

struct DecoderSpec {
  LayerNames names;
  size_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  float attention_scale = 0;              // 0: key width to the power -1/2
  const char* sinks = "self_attn.sinks";  // of layers that have them
  std::optional<GateSpec> gates;          // rows kGate
  RecurrentSpec recurrent;                // of layers that are not attention
  std::optional<RelativeSpec> relative;   // rows kRelative
  std::optional<ConvolutionSpec> convolutions;
  std::optional<NGramSpec> ngrams;       // of layers that say so
  const char* embedding_norm = nullptr;  // of tokens' rows: ends of a tensor's name; null: none
  // latent attention (MLA): kv_lora > 0
  size_t q_lora = 0, kv_lora = 0, nope_dim = 0, rope_dim = 0;
  bool raw_query_latent = false;  // queries are made of [their latent's norm | the latent]
  float latent_norm_epsilon = 1e-6f;
  IndexerSpec indexer;      // sparse attention: top_k > 0
  size_t indexer_rope = 0;  // as LayerOp::rope
  float indexer_epsilon = 1e-6f;
  bool indexer_rotates_last = false;  // the last features of its heads, not the first
  // Of pooled keys, members of attention: weights of their gates, [head_dim, hidden], and what is added to
  // these. Null: keys are averaged, and normalized and rotated behind that.
  const char *pool_gates = nullptr, *pool_bias = nullptr;
  std::optional<SharedKeySpec> shared_key;
  // Members of attention; null: none. Its queries are made of the rows' norm, not of their latent; and
  // are scaled by position and head, as row_op::scale_by_position.
  const char *indexer_input_norm = nullptr, *indexer_scales = nullptr;
  StreamSpec streams;
  RopeSpec rope;
  std::vector<RopeSpec> other_ropes;
  // Logarithms of factors of all frequencies: the end of a tensor's name; null: none.
  const char* rope_factors = nullptr;
  bool whole_blocks = false;  // the lists say what a family's blocks have around router and experts
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 1e-6f;
  float embedding_multiplier = 1, logits_divisor = 1;
  bool round_embedding_multiplier = false;  // to the activation type
  float logits_cap = 0;                     // logits are cap * tanh(logits / cap); 0: as they are
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
  // Of a latent layer's keys: the rotated part, which all heads share, and what each has of its own.
  size_t rotated_dim(size_t layer) const { return layers[layer].no_rotated_part ? 0 : rope_dim; }
  size_t latent_key_dim(size_t layer) const { return key_dim(layer) - rotated_dim(layer); }
};

// Whether rows of a layer see what an indexer chose, and whether that is one of a layer before.
inline bool is_sparse(const DecoderSpec& s, size_t layer) {
  const LayerSpec& l = s.layers[layer];
  const bool of_layer = s.indexer.by_head || (s.indexer.ratio != 0 && !s.indexer.pooled);
  return s.indexer.top_k > 0 && l.attends && !l.recurrent && (!of_layer || l.indexes);
}
inline bool takes_choice(const DecoderSpec& s, size_t layer) {
  return is_sparse(s, layer) && !s.layers[layer].indexes;
}
// The layer whose indexer chooses for this one: the last that has one.
inline size_t choice_from(const DecoderSpec& s, size_t layer) {
  while (layer > 0 && !s.layers[layer].indexes) --layer;
  return layer;
}

// Whether the layer takes what experts of the one before gave.
inline bool joins_later(const LayerSpec& layer) {
  return std::any_of(layer.join_block.begin(), layer.join_block.end(),
                     [](const LayerOp& op) { return op.x == LayerRows::kLater; });
}

// What makes compressed keys of a layer, and those of its indexer.
inline CompressorSpec compressor_of(const DecoderSpec& s, size_t layer) {
  return {s.head_dim, s.layers[layer].ratio, s.layers[layer].indexes};
}
inline CompressorSpec index_compressor_of(const DecoderSpec& s) {
  return {s.indexer.head_dim, s.indexer.ratio, !s.indexer.pooled,
          !s.indexer.pooled || s.pool_gates != nullptr};
}

// "self_attn.q_proj".
inline std::string attention_name(const DecoderSpec& spec, std::string_view member) {
  for (const auto& [ours, theirs] : spec.names.others)
    if (ours == member) member = theirs;
  return std::string(spec.names.attention).append(".").append(member);
}

}  // namespace moebius
