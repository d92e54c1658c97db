// SPDX-License-Identifier: Apache-2.0
// Describes GLM-5.3-Flash (text): four streams of rows that are mixed, Kimi-Linear's delta rule
// with a bounded decay, and layers of DeepSeek-V3.2's attention without rotation, whose indexer
// chooses among keys of 16 tokens.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

// Returns linear_lower_bound, where null means none; linear_attn_config may state it by another
// name, or by safe_gate.
float decay_bound(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  const Json* given = config.text.find("linear_lower_bound");
  std::optional<double> bound = given == nullptr ? -5.0 : f.number({"linear_lower_bound"});
  if (const Json* nested = config.text.find("linear_attn_config");
      nested != nullptr && nested->is_object()) {
    const ConfigFields own = nested_fields(config, "linear_attn_config");
    if (own.find("gate_lower_bound") != nullptr) bound = own.number({"gate_lower_bound"});
    if (!bound && own.boolean({"safe_gate"}).value_or(true)) bound = -5.0;
  }
  if (bound && !(*bound < 0))
    fail("{}: is {}; expected a negative number", f.label("linear_lower_bound"), *bound);
  return static_cast<float>(bound.value_or(0));
}

}  // namespace

DecoderSpec glm5_next_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  if (config.qk_rope_head_dim != 0)
    fail("{}: is {}; expected 0, nothing is rotated", f.label("qk_rope_head_dim"),
         config.qk_rope_head_dim);
  refuse_biases(f);
  if (config.q_lora_rank == 0)
    fail("{}: is missing; the indexer reads the latent of the queries", f.label("q_lora_rank"));
  if (!f.boolean({"index_kpool_always_select_tail"}).value_or(true))
    fail("{}: is false; the first rows would see no key",
         f.label("index_kpool_always_select_tail"));
  DecoderSpec s = deepseek_spec(config);
  s.norm_epsilon = real_of(f, {"rms_norm_eps"}, 1e-5);
  DeltaSpec delta = kimi_delta(config, 64);
  delta.decay_bound = decay_bound(config);

  ChoiceSpec choice;
  IndexerSpec& x = choice.indexer;
  x = indexer_of(f, 32, 0);
  x.ratio = size_of(f, {"index_kpool"}, 16);
  x.pooled = true;
  if (kKeyBlock % x.ratio != 0)
    fail("{}: is {}; expected a divisor of {}", f.label("index_kpool"), x.ratio, kKeyBlock);
  if (x.top_k % x.ratio != 0)
    fail("{}: is {}; expected a multiple of index_kpool = {}", f.label("index_topk"), x.top_k,
         x.ratio);
  x.top_k /= x.ratio;
  choice.pool_gates = "indexer.index_kpool_compress_gate";
  choice.pool_bias = "indexer.index_kpool_compress_ape";

  set_stream_count(f, s);
  s.streams.epsilon = real_of(f, {"hc_eps"}, 1e-6);
  s.streams.rounds = size_of(f, {"hc_sinkhorn_iters"}, 20);

  set_recurrent(
      config, s, {delta, "self_attn"}, "linear_attention", [](size_t i) { return i % 4 != 3; },
      "indexed_attention full_attention deepseek_sparse_attention");
  set_choices(s, choice);
  set_indexers(config, s);
  stop_rotation(s);
  each_attention(s, [&](KeyMixer& m) { m.latent->norm_epsilon = s.norm_epsilon; });
  for (LayerSpec& layer : s.layers) set_streams(layer, "hc_attn_ attn_hc.", "hc_ffn_ ffn_hc.");
  return s;
}

}  // namespace moebius
