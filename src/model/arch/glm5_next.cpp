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
  const Json* nested = config.text.find("linear_attn_config");
  if (nested != nullptr && nested->is_object()) {
    const ConfigFields own(*nested, "config.json", "linear_attn_config.");
    if (nested->find("gate_lower_bound") != nullptr) bound = own.number({"gate_lower_bound"});
    if (!bound && own.boolean({"safe_gate"}).value_or(true)) bound = -5.0;
  }
  if (bound && !(*bound < 0))
    fail("{}: is {}; expected a negative number", f.label("linear_lower_bound"), *bound);
  return static_cast<float>(bound.value_or(0));
}

}  // namespace

DecoderSpec glm5_next_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  const auto size = [&](const char* name, int64_t fallback) {
    return static_cast<size_t>(f.integer_or({name}, fallback, 1, 1 << 30));
  };
  if (config.qk_rope_head_dim != 0)
    fail("{}: is {}; expected 0, nothing is rotated", f.label("qk_rope_head_dim"),
         config.qk_rope_head_dim);
  if (f.boolean({"attention_bias"}).value_or(false))
    fail("{}: is true; its projections have no biases", f.label("attention_bias"));
  if (config.q_lora_rank == 0)
    fail("{}: is missing; the indexer reads the latent of the queries", f.label("q_lora_rank"));
  if (!f.boolean({"index_kpool_always_select_tail"}).value_or(true))
    fail("{}: is false; the first rows would see no key",
         f.label("index_kpool_always_select_tail"));
  DecoderSpec s = deepseek_spec(config);
  s.norm_epsilon = static_cast<float>(f.number({"rms_norm_eps"}).value_or(1e-5));
  s.latent_norm_epsilon = s.norm_epsilon;
  s.names.recurrent = "self_attn";
  DeltaSpec delta = kimi_delta(config, 64);
  delta.decay_bound = decay_bound(config);
  s.recurrent = delta;

  s.indexer.heads = size("index_n_heads", 32);
  s.indexer.head_dim = size("index_head_dim", 128);
  s.indexer.ratio = size("index_kpool", 16);
  s.indexer.pooled = true;
  const size_t tokens = size("index_topk", 2048);
  if (kKeyBlock % s.indexer.ratio != 0)
    fail("{}: is {}; expected a divisor of {}", f.label("index_kpool"), s.indexer.ratio, kKeyBlock);
  if (tokens % s.indexer.ratio != 0)
    fail("{}: is {}; expected a multiple of index_kpool = {}", f.label("index_topk"), tokens,
         s.indexer.ratio);
  s.indexer.top_k = tokens / s.indexer.ratio;
  s.pool_gates = "indexer.index_kpool_compress_gate";
  s.pool_bias = "indexer.index_kpool_compress_ape";

  StreamSpec& streams = s.streams;
  streams.count = size("hc_mult", 4);
  if (streams.count < 2 || streams.count > StreamSpec::kMost)
    fail("{}: is {}; expected 2 to {}", f.label("hc_mult"), streams.count, StreamSpec::kMost);
  streams.epsilon = static_cast<float>(f.number({"hc_eps"}).value_or(1e-6));
  streams.rounds = size("hc_sinkhorn_iters", 20);

  for (size_t i = 0; i < s.layers.size(); ++i) s.layers[i].recurrent = i % 4 != 3;
  if (!config.layer_types.empty())
    set_recurrent(config, s, "linear_attention",
                  "indexed_attention full_attention deepseek_sparse_attention");
  set_indexers(config, s);
  for (LayerSpec& layer : s.layers) {
    layer.no_rotated_part = true;
    stop_rotation(layer);
    set_streams(layer, "hc_attn_ attn_hc.", "hc_ffn_ ffn_hc.");
  }
  return s;
}

}  // namespace moebius
