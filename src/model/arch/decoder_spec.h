// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer as parameters: what an architecture file fills in and decoder.cpp
// runs. No model names here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

#include "nn/delta_net.h"
#include "nn/gated_convolution.h"
#include "nn/indexer.h"
#include "nn/lightning_attention.h"
#include "nn/mamba2.h"
#include "nn/norm.h"
#include "nn/rope.h"

namespace moebius {

enum class QkNorm : uint8_t {
  kNone,
  kHead,        // RMSNorm over head_dim, per head, before the rotation
  kWhole,       // RMSNorm over the whole projection, before the rotation
  kHeadAfter,   // RMSNorm over head_dim, per head, after the rotation
  kAfterPlain,  // RMS without weight over head_dim, after the rotation (Llama-4)
};

struct HeadSizes {
  size_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
};

// How a branch joins the row it comes from: row = row * keep + branch * add.
struct Residual {
  float keep = 1, add = 1;
};

struct LayerSpec {
  bool attends = true;     // false: the layer is an MLP or experts alone
  bool mixes = true;       // false: it is attention or a recurrent layer alone
  bool recurrent = false;  // DecoderSpec::recurrent in place of attention
  HeadSizes sizes;         // where they differ from the model's; 0: they do not
  size_t rope = 0;         // which rotation: 0 the model's, n the n-th of other_ropes
  size_t kv_from = 0;  // keys and values are those of a layer so many before this one; 0: its own
  bool values_are_keys = false;  // values are what k_proj gives, before its norm and rotation
  bool indexes = false;  // sparse attention: chooses keys; else those of the layer before are taken
  bool sinks = false;    // an extra logit per head without a value
  bool rotary = true;    // false: no position embedding in this layer
  Residual attention_residual, block_residual;
  size_t window = 0, chunk = 0;
  // q is multiplied by 1 + scale * ln(1 + floor((position + first) / floor)) (Llama-4, Mistral-4); 0:
  // not
  float temperature_scale = 0, temperature_floor = 1, temperature_first = 1;
};

// Where a layer keeps attention and what stands in its place.
struct LayerNames {
  std::string_view attention = "self_attn", output = "o_proj";  // of attention
  std::string_view recurrent = "linear_attn";
};

using RecurrentSpec =
    std::variant<std::monostate, DeltaSpec, Mamba2Spec, GatedConvolutionSpec, LightningSpec>;

struct DecoderSpec {
  LayerNames names;
  size_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  float attention_scale = 0;  // 0: key width to the power -1/2
  QkNorm qk_norm = QkNorm::kNone;
  const char *q_norm = "self_attn.q_norm", *k_norm = "self_attn.k_norm";  // where they are stored
  const char* sinks = "self_attn.sinks";  // of layers that have them
  bool value_norm = false;                // values are normalized per head, without weight
  float value_scale = 1;                  // values are multiplied by it
  float clip_qkv = 0;                     // 0: no clipping
  // q_proj gives [q | gate] per head; results are multiplied by sigmoid(gate)
  bool output_gate = false;
  const char* gate_proj = nullptr;  // or the gates are a projection of their own ...
  bool gate_per_head = false, gate_softplus = false;  // ... one for each head; softplus(gate)
  RecurrentSpec recurrent;                            // of layers that are not attention
  // latent attention (MLA): kv_lora > 0
  size_t q_lora = 0, kv_lora = 0, nope_dim = 0, rope_dim = 0;
  float latent_norm_epsilon = 1e-6f;
  IndexerSpec indexer;      // sparse attention: top_k > 0
  size_t indexer_rope = 0;  // as LayerSpec::rope
  RopeSpec rope;
  std::vector<RopeSpec> other_ropes;
  // Norms of what attention and the block behind it read, and of what they give; null: none.
  const char *attention_in = "input_layernorm", *attention_out = nullptr;
  const char *block_in = "post_attention_layernorm", *block_out = nullptr;
  bool residual_behind_norm =
      false;              // branches are added to what they read, not to the row before its norm
  bool parallel = false;  // the block reads what attention reads; block_in is not looked at
  // A dense MLP beside the experts, each with norms of its own; the router reads the layer's rows,
  // normalized and scaled (Gemma-4).
  bool dense_parallel = false;
  const char* layer_scalar = nullptr;  // what a layer gives is multiplied by it
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
};

}  // namespace moebius
