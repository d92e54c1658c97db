// SPDX-License-Identifier: Apache-2.0
// Describes Cohere-2 with experts: attention and experts read the same rows; windows with rotation
// of neighbouring pairs in most layers, full attention without rotation in the others.
#include "base/error.h"
#include "model/arch/arch.h"

namespace moebius {
namespace {

// Returns which layers have a window; without a list, dense layers at the front have a pattern of
// their own.
std::vector<bool> sliding_layers(const ModelConfig& config, size_t dense) {
  const ConfigFields f = fields_of(config);
  const std::vector<std::string> types = f.strings({"layer_types"});
  const auto layers = static_cast<size_t>(config.layers);
  if (!types.empty() && types.size() != layers)
    fail("{}: has {} words; expected one for each of {} layers", f.label("layer_types"),
         types.size(), layers);
  const size_t front = size_of(f, {"prefix_dense_sliding_window_pattern"}, 1, 1 << 20),
               rest = size_of(f, {"sliding_window_pattern"}, 4, 1 << 20);
  return layers_called(config, "sliding_attention", [&](size_t i) {
    return i < dense ? (i + 1) % front != 0 : (i - dense + 1) % rest != 0;
  });
}

}  // namespace

DecoderSpec cohere2_moe_spec(const ModelConfig& config) {
  const ConfigFields f = fields_of(config);
  DecoderSpec s = common_spec(config);
  if (f.integer_or({"num_shared_experts"}, 0, 0, 1024) > 0 &&
      f.string({"shared_expert_combination_strategy"}).value_or("average") != "sum")
    fail("{}: is not 'sum'; averages of experts and shared experts cannot be run yet",
         f.label("shared_expert_combination_strategy"));
  s.rope.interleaved = true;
  if (!f.has({"rms_norm_eps"})) {
    s.norm = NormKind::kLayer;
    s.norm_epsilon = real_of(f, {"layer_norm_eps"}, 1e-5);
  }
  const double scale = f.number({"logit_scale"}).value_or(0.0625);
  if (!(scale > 0)) fail("{}: is {}; expected a positive number", f.label("logit_scale"), scale);
  s.ends.divisor = static_cast<float>(1 / scale);
  const auto first =
      static_cast<size_t>(f.integer_or({"first_k_dense_replace"}, 0, 0, config.layers));
  set_windows(s, sliding_layers(config, first), size_of(f, {"sliding_window"}, 4096));
  const bool rotate_dense =
      f.integer_or({"prefix_dense_sliding_window_pattern"}, 1, 1, 1 << 20) == 1;
  const std::vector<std::string> blocks = f.strings({"mlp_layer_types"});
  for (size_t i = 0; i < s.layers.size(); ++i) {
    const bool dense = i < blocks.size() ? blocks[i] == "dense" : i < first;
    if (KeyMixer& m = s.keys(i); m.window == 0 && (!rotate_dense || !dense)) stop_rotation(m);
    s.layers[i].block.enter.clear();  // attention and experts read the same rows
  }
  return s;
}

}  // namespace moebius
