// SPDX-License-Identifier: Apache-2.0
// Describes the text part of Mistral-Large-4: DeepSeek's latent attention without a latent of
// queries, which are scaled by position and head; a rotation with learned frequencies in most
// layers and keys without a rotated part in the others; latents that later layers take; an indexer
// that reads a norm of the rows.
#include <array>
#include <utility>

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
    KeyMixer& m = s.keys(i);
    const auto from = static_cast<size_t>(sources[i]);
    size_t& kept = last[m.latent->rotated == 0 ? 1 : 0];
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
    m.kv_from = i - from;
  }
}

}  // namespace

DecoderSpec mistral_large4_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = deepseek_spec(config);
  set_branch_norms(s, {.attention_in = "attention_norm", .block_in = "ffn_norm"});
  s.norm_epsilon = real_of(f, {"rms_norm_eps"}, 1e-5);
  s.rope.interleaved = true;
  s.rope_factors = "lerope.alpha rotary_emb.alpha";
  if (config.q_lora_rank != 0)
    fail("{}: is {}; its queries have no latent", f.label("q_lora_rank"), config.q_lora_rank);
  s.ends.cap = real_of(f, {"final_logit_softcapping"}, 30);
  ChoiceSpec choice;
  choice.indexer = indexer_of(f, 32, static_cast<size_t>(config.qk_rope_head_dim));
  choice.input_norm = "indexer.q_input_norm";
  choice.scales = "indexer.ssmax_scaling";
  set_choices(s, choice);
  // 1: the layer rotates
  const std::vector<int64_t> rotated = f.integers({"no_rope_layers"}, 0, 1);
  const size_t every = size_of(f, {"no_rope_layer_interval"}, 4);
  for (size_t i = 0; i < s.layers.size(); ++i) {
    KeyMixer& m = s.keys(i);
    m.names = {"attention", "wo", kMistralNames};
    m.latent->norm_epsilon = s.norm_epsilon;
    if (i < rotated.size() ? rotated[i] == 0 : (i + 1) % every == 0) {
      m.latent->own += std::exchange(m.latent->rotated, 0);
      stop_rotation(m);
    }
    m.rows.push_back(row_op::scale_by_position(LayerRows::kQuery, "attention.ssmax_scaling"));
  }
  set_indexers(config, s);
  set_sources(s, f);
  return s;
}

}  // namespace moebius
