// SPDX-License-Identifier: Apache-2.0
// Describes the text part of Mistral-Large-4: DeepSeek's latent attention without a latent of
// queries, which are scaled by position and head; a rotation with learned frequencies in most
// layers and keys without a rotated part in the others; latents that later layers take; an indexer
// that reads a norm of the rows.
#include <array>

#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

using Pair = std::pair<std::string_view, std::string_view>;
constexpr std::array kMistralNames = {
    Pair{"q_proj", "wq"}, Pair{"kv_a_proj_with_mqa", "wkv_a_with_mqa"},
    Pair{"kv_a_layernorm", "kv_a_norm"}, Pair{"kv_b_proj", "wkv_b"}};

// Sets the layers whose latents others use; transformers keeps the last ones of rotated layers and
// of the others.
void set_sources(DecoderSpec& s, const ConfigFields& f) {
  const std::vector<int64_t> sources =
      f.integers({"kv_source_layers"}, 0, static_cast<int64_t>(s.layers.size()) - 1);
  if (sources.empty()) return;
  if (sources.size() != s.layers.size())
    fail("{}: has {} numbers; expected one for each of {} layers", f.label("kv_source_layers"),
         sources.size(), s.layers.size());
  std::array<size_t, 2> last = {SIZE_MAX, SIZE_MAX};
  for (size_t i = 0; i < sources.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    const auto from = static_cast<size_t>(sources[i]);
    size_t& kept = last[layer.no_rotated_part ? 1 : 0];
    if (from == i) {
      for (size_t j = i + 1; j < sources.size(); ++j)
        if (static_cast<size_t>(sources[j]) == i) kept = i;
      continue;
    }
    if (from > i || from != kept)
      fail(
          "{}: layer {} takes latents of layer {}; expected those of the last layer of its kind "
          "(rotated or not) that others take",
          f.label("kv_source_layers"), i, from);
    layer.kv_from = i - from;
  }
}

}  // namespace

DecoderSpec mistral_large4_spec(const ModelConfig& config) {
  using enum LayerRows;
  const ConfigFields f = fields_of(config);
  DecoderSpec s = deepseek_spec(config);
  s.names = {"attention", "wo", "", kMistralNames};
  set_branch_norms(s, {.attention_in = "attention_norm", .block_in = "ffn_norm"});
  s.norm_epsilon = static_cast<float>(f.number({"rms_norm_eps"}).value_or(1e-5));
  s.latent_norm_epsilon = s.norm_epsilon;
  s.rope.interleaved = true;
  s.rope_factors = "lerope.alpha rotary_emb.alpha";
  if (s.q_lora != 0)
    fail("{}: is {}; its queries have no latent", f.label("q_lora_rank"), s.q_lora);
  s.logits_cap = static_cast<float>(f.number({"final_logit_softcapping"}).value_or(30));
  const auto size = [&](const char* name, int64_t fallback) {
    return static_cast<size_t>(f.integer_or({name}, fallback, 1, 1 << 30));
  };
  s.indexer.heads = size("index_n_heads", 32);
  s.indexer.head_dim = size("index_head_dim", 128);
  s.indexer.top_k = size("index_topk", 2048);
  if (s.indexer.head_dim < s.rope_dim)
    fail("{}: is {}; expected at least qk_rope_head_dim = {}", f.label("index_head_dim"),
         s.indexer.head_dim, s.rope_dim);
  s.indexer_input_norm = "indexer.q_input_norm";
  s.indexer_scales = "indexer.ssmax_scaling";
  // 1: the layer rotates
  const std::vector<int64_t> rotated = f.integers({"no_rope_layers"}, 0, 1);
  const size_t every = size("no_rope_layer_interval", 4);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.no_rotated_part = i < rotated.size() ? rotated[i] == 0 : (i + 1) % every == 0;
    if (layer.no_rotated_part) stop_rotation(layer);
    layer.attention_rows.push_back(row_op::scale_by_position(kQuery, "attention.ssmax_scaling"));
  }
  set_indexers(config, s);
  set_sources(s, f);
  return s;
}

}  // namespace moebius
