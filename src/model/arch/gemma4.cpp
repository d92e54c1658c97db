// SPDX-License-Identifier: Apache-2.0
// Describes the text part of Gemma-4: windows and full attention with other head sizes and
// rotations, values without weights in their norm, norms on both sides of every branch, a dense MLP
// beside the experts.
#include <cmath>

#include "base/error.h"
#include "model/arch/arch.h"
#include "model/arch/layer_fields.h"

namespace moebius {
namespace {

// Sets the sizes of a layer without a window, where it has some of its own.
void set_global_sizes(const ModelConfig& config, const ConfigFields& f, size_t layer,
                      HeadSizes& of_layer) {
  HeadSizes sizes;
  const auto read = [&](const ConfigFields& from, const char* head_dim, const char* kv_heads) {
    sizes.head_dim = static_cast<size_t>(from.integer_or({head_dim}, 0, 1, 1 << 20));
    sizes.kv_heads = static_cast<size_t>(from.integer_or({kv_heads}, 0, 1, 1 << 20));
  };
  if (has_layer_fields(config)) {
    read(layer_fields(config, layer), "head_dim", "num_key_value_heads");
  } else {
    read(f, "global_head_dim", "num_global_key_value_heads");
    if (sizes.head_dim == 0) sizes.head_dim = 512;
    if (!f.boolean({"attention_k_eq_v"}).value_or(false)) sizes.kv_heads = 0;
  }
  if (sizes.head_dim != 0) of_layer.head_dim = of_layer.value_dim = sizes.head_dim;
  if (sizes.kv_heads != 0) of_layer.kv_heads = sizes.kv_heads;
}

// Lets the last `shared` layers use keys and values of the last layer of their type before them.
void share_keys(DecoderSpec& s, size_t shared) {
  const size_t first = s.layers.size() - shared;
  for (size_t i = first; i < s.layers.size() && shared > 0; ++i)
    for (size_t j = first; j-- > 0 && s.keys(i).kv_from == 0;)
      if ((s.keys(i).window == 0) == (s.keys(j).window == 0)) s.keys(i).kv_from = i - j;
}

// Describes experts beside the MLP, whose router reads x / rms(x) * scale / sqrt(hidden).
BesideSpec experts_beside(const ModelConfig& config) {
  using enum LayerRows;
  LayerOp router = row_op::norm(kRouterInput, kHidden, "router.scale");
  router.factor = 1.0f / std::sqrt(static_cast<float>(config.hidden));
  return {
      {router, row_op::norm(kExpertsInput, kHidden, "pre_feedforward_layernorm_2")},
      {row_op::norm(kBranch, kBranch, "post_feedforward_layernorm_2"),
       row_op::norm(kDense, kDense, "post_feedforward_layernorm_1"), row_op::add(kBranch, kDense)}};
}

void refuse_unknown(const ConfigFields& f) {
  if (const int64_t width = f.integer_or({"hidden_size_per_layer_input"}, 0, 0, 1 << 20); width > 0)
    fail("{}: is {}; embeddings per layer cannot be run yet",
         f.label("hidden_size_per_layer_input"), width);
  if (f.string({"use_bidirectional_attention"}).value_or("") == "all")
    fail("{}: is 'all'; only causal attention can be run", f.label("use_bidirectional_attention"));
}

}  // namespace

DecoderSpec gemma4_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  refuse_unknown(f);
  using enum LayerRows;
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  s.norm = NormKind::kRmsFused;
  s.ends.multiplier = std::sqrt(static_cast<float>(config.hidden));
  s.ends.round_multiplier = true;
  norm_heads(s);
  set_branch_norms(s, {.attention_out = "post_attention_layernorm",
                       .block_in = "pre_feedforward_layernorm",
                       .block_out = "post_feedforward_layernorm"});
  for (LayerSpec& layer : s.layers) {
    layer.keys()->scale = 1;
    layer.keys()->rows.push_back(row_op::head_norm(kValue, nullptr));
    layer.block.join.push_back(row_op::scale_by(kHidden, "layer_scalar"));
    if (config.experts > 0) layer.beside = experts_beside(config);
  }
  s.whole_blocks = true;
  s.ends.cap = real_of(f, {"final_logit_softcapping"}, 0);
  std::vector<bool> slides =
      layers_called(config, "sliding_attention", [](size_t i) { return (i + 1) % 6 != 0; });
  slides.back() = false;
  set_windows(s, slides, size_of(f, {"sliding_window"}, 512));
  const bool k_eq_v = f.boolean({"attention_k_eq_v"}).value_or(false);
  s.rope = rope_spec(config, static_cast<size_t>(config.head_dim), "sliding_attention");
  for (size_t i = 0; i < s.layers.size(); ++i) {
    KeyMixer& m = s.keys(i);
    if (slides[i]) {
      if (const ConfigFields own = layer_fields(config, i);
          own.has({"head_dim", "num_key_value_heads"}))
        fail("{}: is given; a layer with a window has the model's heads", own.label("head_dim"));
      continue;
    }
    set_global_sizes(config, f, i, m.sizes);
    m.values_are_keys = k_eq_v;
    set_rope(m, 1);
    if (s.other_ropes.empty())
      s.other_ropes.push_back(rope_spec(config, m.sizes.head_dim, "full_attention"));
  }
  share_keys(s,
             static_cast<size_t>(f.integer_or({"num_kv_shared_layers"}, 0, 0, config.layers - 1)));
  return s;
}

}  // namespace moebius
