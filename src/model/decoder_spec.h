// SPDX-License-Identifier: Apache-2.0
// A decoder-only transformer as parameters: what an architecture file fills in and decoder.cpp
// runs. No model names here.
#pragma once
#include <cstddef>
#include <cstdint>
#include <vector>

#include "nn/delta_net.h"
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

struct LayerSpec {
  bool linear = false;  // linear attention (DecoderSpec::delta) in place of attention
  bool rotary = true;   // false: no position embedding in this layer
  size_t window = 0, chunk = 0;
  // q is multiplied by 1 + scale * ln(1 + floor((position + 1) / floor)) in layers without rotation
  // (Llama-4); 0: not
  float temperature_scale = 0, temperature_floor = 1;
};

struct DecoderSpec {
  size_t heads = 0, kv_heads = 0, head_dim = 0, value_dim = 0;
  float attention_scale = 0;  // 0: key width to the power -1/2
  QkNorm qk_norm = QkNorm::kNone;
  const char *q_norm = "self_attn.q_norm", *k_norm = "self_attn.k_norm";  // where they are stored
  float clip_qkv = 0;                                                     // 0: no clipping
  bool sinks = false;
  bool output_gate =
      false;        // q_proj gives [q | gate] per head; results are multiplied by sigmoid(gate)
  DeltaSpec delta;  // of layers with linear attention
  bool delta_apart =
      false;  // its projections are q k v, z, b, a; else two, interleaved by key head
  // latent attention (MLA): kv_lora > 0
  size_t q_lora = 0, kv_lora = 0, nope_dim = 0, rope_dim = 0;
  float latent_norm_epsilon = 1e-6f;
  RopeSpec rope;
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 1e-6f;
  float embedding_multiplier = 1, residual_multiplier = 1, logits_divisor = 1;
  std::vector<LayerSpec> layers;

  bool latent() const { return kv_lora > 0; }
  size_t key_dim() const { return latent() ? nope_dim + rope_dim : head_dim; }
};

}  // namespace moebius
