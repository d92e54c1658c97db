// SPDX-License-Identifier: Apache-2.0
// Describes MiMo-V2-Flash: windows with sinks and twice the key-value heads in most layers; values
// narrower than keys, and scaled.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

// Reads published configs, which are older than transformers' class: a list says which layers have
// a window, the window does not count the token itself, and windows have their own field for the
// rotation's base.
bool slides_by_list(const std::vector<int64_t>& pattern, size_t layer) {
  if (layer < pattern.size()) return pattern[layer] != 0;
  return layer != 0 && (layer + 1) % 6 != 0;
}

void set_older_ropes(const ConfigFields& f, DecoderSpec& s) {
  const double share = f.number({"partial_rotary_factor"}).value_or(0.334);
  if (!(share > 0 && share <= 1))
    fail("{}: is {}; expected more than 0, at most 1", f.label("partial_rotary_factor"), share);
  const auto rope = [&](const char* base, double fallback) {
    RopeSpec r;
    r.dims = static_cast<size_t>(share * static_cast<double>(s.keys(0).sizes.head_dim));
    r.base = f.number({base}).value_or(fallback);
    if (r.dims == 0 || r.dims % 2 != 0 || !(r.base > 0))
      fail("{}: {} rotated features per head with base {}; expected an even number of them",
           f.label(base), r.dims, r.base);
    return r;
  };
  s.rope = rope("rope_theta", 5e6);
  s.other_ropes = {rope("swa_rope_theta", 1e4)};
  each_attention(s, [](KeyMixer& m) { set_rope(m, m.window != 0 ? 1 : 0); });
}

}  // namespace

DecoderSpec mimo_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config, static_cast<size_t>(config.head_dim));
  const float scale = real_of(f, {"attention_value_scale"}, 1);
  const std::vector<int64_t> pattern = f.integers({"hybrid_layer_pattern"}, 0, 1);
  const auto window = static_cast<size_t>(f.has({"sliding_window_size"})
                                              ? f.require({"sliding_window_size"}, 1, 1 << 30) + 1
                                              : f.integer_or({"sliding_window"}, 129, 1, 1 << 30));
  set_windows(s,
              layers_called(config, "sliding_attention",
                            [&](size_t i) { return slides_by_list(pattern, i); }),
              window);
  each_attention(s, [&](KeyMixer& m) {
    m.rows.push_back(row_op::scale(LayerRows::kValue, scale));
    if (config.v_head_dim > 0) m.sizes.value_dim = static_cast<size_t>(config.v_head_dim);
    if (m.window == 0) return;
    m.sinks = "self_attn.attention_sink_bias";
    m.sizes.kv_heads *= 2;
  });
  if (f.has({"rope_parameters"}))
    set_typed_ropes(config, s, 0.334);
  else
    set_older_ropes(f, s);
  return s;
}

}  // namespace moebius
