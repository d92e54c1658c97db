// SPDX-License-Identifier: Apache-2.0
// Describes Hy4: four streams of rows (hyper-connections that do not mix them), DeepSeek-V3.2's
// attention with sinks and gated results, an indexer whose last features are rotated.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {

DecoderSpec hy_v4_spec(const ModelConfig& config) {
  using enum LayerRows;
  const ConfigFields f = fields_of(config);
  DecoderSpec s = deepseek_spec(config);
  s.norm_epsilon = static_cast<float>(f.number({"rms_norm_eps"}).value_or(1e-5));
  s.rope.interleaved = false;
  if (s.q_lora == 0) fail("{}: is missing", f.label("q_lora_rank"));
  const auto size = [&](const char* name, int64_t fallback) {
    return static_cast<size_t>(f.integer_or({name}, fallback, 1, 1 << 30));
  };
  s.indexer.heads = size("index_n_heads", 16);
  s.indexer.head_dim = size("index_head_dim", 128);
  s.indexer.top_k = size("index_topk", 2048);
  s.indexer_epsilon = s.norm_epsilon;
  if (s.indexer.head_dim < s.rope_dim)
    fail("{}: is {}; expected at least qk_rope_head_dim = {}", f.label("index_head_dim"),
         s.indexer.head_dim, s.rope_dim);
  s.indexer_rotates_last = true;
  s.sinks = "self_attn.learnable_sink_param";
  s.gates = GateSpec{"self_attn.linear_gate"};
  StreamSpec& streams = s.streams;
  streams.count = size("hc_mult", 4);
  if (streams.count < 2 || streams.count > StreamSpec::kMost)
    fail("{}: is {}; expected 2 to {}", f.label("hc_mult"), streams.count, StreamSpec::kMost);
  streams.epsilon = static_cast<float>(f.number({"hc_eps"}).value_or(1e-6));
  streams.out_epsilon = streams.epsilon;
  streams.magnitude = static_cast<float>(f.number({"hc_magnitude"}).value_or(2));
  streams.head = "hc_head_";
  const std::vector<std::string> types = f.strings({"indexer_types"});
  for (size_t i = 0; i < s.layers.size(); ++i) {
    LayerSpec& layer = s.layers[i];
    layer.sinks = true;
    layer.indexes = i < types.size() ? types[i] == "full" : i == 0 || (i - 1) % 4 == 0;
    layer.attended = {row_op::gate(RowOpKind::kGateSigmoid)};
    set_streams(layer, "hc_attn_layer.hc_pre.hc_ hc_attn_layer.hc_ hc_pre.hc_attn_layer.hc_",
                "hc_mlp_layer.hc_pre.hc_ hc_mlp_layer.hc_ hc_pre.hc_mlp_layer.hc_");
  }
  if (!s.layers[0].indexes)
    fail("{}: the first layer is 'shared'; expected 'full'", f.label("indexer_types"));
  return s;
}

}  // namespace moebius
