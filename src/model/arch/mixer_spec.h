// SPDX-License-Identifier: Apache-2.0
// Describes what mixes the rows of a sequence in a layer: attention over keys and values of the
// past, or a recurrent net with a state. A mixer owns its fields and says what it keeps of the past.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "model/arch/layer_op.h"
#include "nn/compressor.h"
#include "nn/convolution_layer.h"
#include "nn/delta_net.h"
#include "nn/indexer.h"
#include "nn/lightning_attention.h"
#include "nn/mamba1.h"
#include "nn/mamba2.h"

namespace moebius {

struct HeadSizes {
  size_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
};

// Names the modules of a layer's attention.
struct AttentionNames {
  // output: alternative names, of which the first that exists is used.
  std::string_view attention = "self_attn", output = "o_proj";
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

// Describes logits by distance: a projection of the rows gives `dims` numbers per head, which a
// tensor [dims, extent] turns into logits.
struct RelativeSpec {
  const char *projection, *table;
  size_t dims, extent;  // extent: number of distances that have a logit of their own
};

// Describes latent attention (MLA).
struct LatentSpec {
  size_t query = 0, keys = 0;  // widths of latents; query 0: queries are computed from the rows
  // Features of a key: those of each head, and those that are rotated and shared by all heads.
  size_t own = 0, rotated = 0;
  bool raw_query = false;  // queries are computed from [norm of their latent | the latent itself]
  float norm_epsilon = 1e-6f;
  LayerOps rows;  // changes kLatent

  size_t key_width() const { return own + rotated; }
  size_t stored_width() const { return keys + rotated; }
};

// Describes attention with one kv head whose keys are also its values. Queries are computed from a
// latent; results are rotated back, and groups of heads have output projections of their own before
// a common one.
struct SharedKeySpec {
  size_t query = 0, rotated = 0;  // width of the latent; features of a head that are rotated
  size_t groups = 1, rank = 0;    // rank: outputs of each group's projection
  // Tokens per compressed key, which rows see beside the window's keys; 0: no compressed keys.
  size_t ratio = 0;
  size_t rope = 0;  // rotation of compressed keys, numbered like LayerOp::rope
};

// Describes sparse attention: rows see only keys that an indexer chose.
struct ChoiceSpec {
  IndexerSpec indexer;
  bool own = true;  // the layer's own indexer chooses; false: an earlier layer's choice is used
  size_t rope = 0;  // numbered like LayerOp::rope
  float epsilon = 1e-6f;
  bool rotates_last = false;  // rotates the last features of its heads instead of the first
  // Members of attention for pooled keys: weights of their gates, [head_dim, hidden], and a bias.
  // Null: keys are averaged, then normalized and rotated.
  const char *pool_gates = nullptr, *pool_bias = nullptr;
  // Members of attention; null: none. The indexer's queries are then computed from the normalized
  // rows instead of their latent, and scaled by position and head (row_op::scale_by_position).
  const char *input_norm = nullptr, *scales = nullptr;

  CompressorSpec compressor() const {
    return {indexer.head_dim, indexer.ratio, !indexer.pooled,
            !indexer.pooled || pool_gates != nullptr};
  }
};

// Describes attention. It keeps keys and values of tokens, or what they are computed from.
struct KeyMixer {
  AttentionNames names;
  HeadSizes sizes;
  float scale = 0;  // factor of scores; 0: 1 / sqrt(key width)
  size_t window = 0, chunk = 0;
  size_t first_key = 0;  // rows at or after this position do not see keys before it
  size_t kv_from = 0;  // keys and values are those of the layer this far before; 0: the layer's own
  bool values_are_keys = false;  // values are k_proj's result before its norm and rotation
  // Name of the tensor with an extra logit of each head without a value; null: none.
  const char* sinks = nullptr;
  std::optional<GateSpec> gates;         // makes the rows kGate
  std::optional<RelativeSpec> relative;  // makes the rows kRelative
  std::optional<LatentSpec> latent;
  std::optional<SharedKeySpec> shared_key;
  std::optional<ChoiceSpec> choice;
  LayerOps rows;      // changes kQuery, kKey and kValue after their projections
  LayerOps attended;  // changes kAttended after attention; may read kGate

  // Returns how many tokens back a row looks.
  size_t reach() const {
    return std::min(window != 0 ? window : SIZE_MAX, chunk != 0 ? chunk : SIZE_MAX);
  }
  size_t key_width() const { return latent ? latent->key_width() : sizes.head_dim; }
  float score_scale() const {
    return scale != 0 ? scale : static_cast<float>(1 / std::sqrt(static_cast<double>(key_width())));
  }
  bool makes_choice() const { return choice && choice->own; }
  bool takes_choice() const { return choice && !choice->own; }
  size_t ratio() const { return shared_key ? shared_key->ratio : 0; }
  CompressorSpec compressor() const { return {sizes.head_dim, ratio(), choice.has_value()}; }
  size_t gate_width() const {
    return gates ? sizes.heads * (gates->per_head ? 1 : sizes.value_dim) : 0;
  }
  // Returns the full name of a member, such as "self_attn.q_proj".
  std::string name(std::string_view member) const {
    for (const auto& [ours, theirs] : names.others)
      if (ours == member) member = theirs;
    return std::string(names.attention).append(".").append(member);
  }
};

// Describes a recurrent net. It keeps a state of fixed size.
struct StateMixer {
  std::variant<DeltaSpec, Mamba1Spec, Mamba2Spec, GatedConvolutionSpec, LightningSpec> net;
  std::string_view name = "linear_attn";

  size_t state_floats() const {
    return std::visit([](const auto& n) { return n.shape().state; }, net);
  }
};

// The first alternative: the layer has no mixer, only an MLP or experts.
using MixerSpec = std::variant<std::monostate, KeyMixer, StateMixer>;

}  // namespace moebius
