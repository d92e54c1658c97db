// SPDX-License-Identifier: Apache-2.0
// Describes Hy4: four streams of rows (hyper-connections that do not mix them), DeepSeek-V3.2's
// attention with sinks and gated results, an indexer whose last features are rotated.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec hy_v4_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = deepseek_spec(config);
  s.norm_epsilon = real_of(f, {"rms_norm_eps"}, 1e-5);
  s.rope.interleaved = false;
  if (config.q_lora_rank == 0) fail("{}: is missing", f.label("q_lora_rank"));
  ChoiceSpec choice;
  choice.indexer = indexer_of(f, 16, static_cast<size_t>(config.qk_rope_head_dim));
  choice.epsilon = s.norm_epsilon;
  choice.rotates_last = true;
  set_choices(s, choice);
  set_gates(s, {"self_attn.linear_gate"});
  set_stream_count(f, s);
  s.streams.epsilon = s.streams.out_epsilon = real_of(f, {"hc_eps"}, 1e-6);
  s.streams.magnitude = real_of(f, {"hc_magnitude"}, 2);
  s.streams.head = "hc_head_";
  const std::vector<std::string> types = f.strings({"indexer_types"});
  for (size_t i = 0; i < s.layers.size(); ++i) {
    KeyMixer& m = s.keys(i);
    m.sinks = "self_attn.learnable_sink_param";
    m.choice->own = i < types.size() ? types[i] == "full" : i == 0 || (i - 1) % 4 == 0;
    set_streams(s.layers[i], "hc_attn_layer.hc_pre.hc_ hc_attn_layer.hc_ hc_pre.hc_attn_layer.hc_",
                "hc_mlp_layer.hc_pre.hc_ hc_mlp_layer.hc_ hc_pre.hc_mlp_layer.hc_");
  }
  if (!s.keys(0).makes_choice())
    fail("{}: the first layer is 'shared'; expected 'full'", f.label("indexer_types"));
  return s;
}

}  // namespace moebius
